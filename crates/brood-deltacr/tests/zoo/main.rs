//! A zoo of small programs. Each sets up one kind of state and verifies it by itself: after it
//! was captured and went on, after it was restored as a fork in fresh namespaces, and after it
//! was rolled back in place.

#[cfg(test)]
mod harness;
#[cfg(test)]
mod kinds;
#[cfg(test)]
mod real_programs;
#[cfg(test)]
mod refusals;
#[cfg(test)]
mod repointing;
#[cfg(test)]
mod terminals;
