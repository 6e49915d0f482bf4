//! Tests of the whole network: as root, each in a host of its own (a network namespace), with real servers outside.

#[cfg(test)]
mod basics;
#[cfg(test)]
mod registry;
#[cfg(test)]
mod world;
