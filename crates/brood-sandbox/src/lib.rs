//! The life of a sandbox: templates, isolation, tool calls, limits.
