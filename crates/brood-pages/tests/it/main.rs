//! Tests of whole cohorts, on synthetic pages and on pages of real processes.

mod cohort;
mod corpus;
mod hostile_frames;
mod real_pages;
mod threads;
