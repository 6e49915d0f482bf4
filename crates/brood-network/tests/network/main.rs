//! Tests of the whole network: as root, each in a host of its own (a network namespace), with real servers outside.

#[cfg(test)]
mod basics;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod inward;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod names;
#[cfg(test)]
mod policies;
#[cfg(test)]
mod registry;
#[cfg(test)]
mod scale;
#[cfg(test)]
mod servers;
#[cfg(test)]
mod world;
