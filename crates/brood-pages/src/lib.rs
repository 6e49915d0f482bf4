//! Codecs, pool, references and predictors for memory pages: pure, no system calls.
