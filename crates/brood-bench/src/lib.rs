//! Measures a running daemon and the host beside it.
//!
//! Each benchmark is one object of figures under stable keys, distributions as
//! [`Distribution`], with the [`Environment`] that they were taken in. The samples behind a figure
//! are written as CSV by [`Samples::write`], so that every figure can be checked.
//!
//! Rules: what is compared is measured in the same run, in alternation; a figure that could not be
//! taken is absent with its reason, never guessed.
#![forbid(unsafe_code)]

pub mod checkpoint;
pub mod environment;
pub mod figures;
pub mod host;
pub mod sandbox;
pub mod selection;
pub mod squeeze;

pub use environment::Environment;
pub use figures::{Distribution, Samples};
