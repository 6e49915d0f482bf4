//! Which layers to squash, so that no stack gets deep.
//!
//! Every checkpoint adds a layer, and each may have to be kept, so runs of
//! layers cannot simply be replaced. Instead merged layers are made beside
//! them, as an index has levels: six adjacent layers of level 0 make one of
//! level 1, six of these one of level 2. A stack then needs at most five
//! layers a level: twenty above its image for the first 1,296 checkpoints.
//! Merging again costs each name once a level. Layers that no stack needs
//! any more go by [`Store::release`].

use std::collections::HashSet;
use std::ops::Range;

use crate::error::{Named, Result};
use crate::id::{LayerId, random_name};
use crate::layer::{Layer, LayerStack};
use crate::store::Store;

/// Layers above the image that no stack exceeds for long: what look-ups cost
/// in it is still small beside a system call.
pub const DEPTH_AIM: usize = 20;

/// Adjacent layers of one level that are merged.
const FAN: usize = 6;

/// Levels that a name can tell.
const LEVEL_MAX: u32 = 9;

impl Store {
    /// A stack that means the same as `stack` and is at most about
    /// [`DEPTH_AIM`] layers deep above the layers in `pinned` (those of images
    /// and of the system), or nothing if it is shallow already.
    ///
    /// Merges that are needed are made now, which takes milliseconds to
    /// seconds: call it in the background. A merged layer that exists is used
    /// again. Mounts of `stack` are not touched. Whoever uses the new stack
    /// instead gives the old one back with [`Store::release`].
    ///
    /// # Errors
    /// As [`Store::squash`].
    pub fn shortened(&self, stack: &LayerStack, pinned: &HashSet<LayerId>) -> Result<Option<LayerStack>> {
        let mut current = stack.clone();
        let mut changed = false;
        while let Some((run, level)) = next_merge(current.layers(), pinned) {
            let ids: Box<[LayerId]> = current.ids().skip(run.start).take(run.len()).cloned().collect();
            let merged = match self.merged(&ids) {
                Some(merged) => merged,
                None => {
                    let merged = self.squash_as(&current, run.clone(), level_id(level)?)?;
                    self.remember_merged(ids, &merged);
                    merged
                }
            };
            let shorter = current.replaced(run, &merged);
            // A merged layer that was merged again at once is nobody's.
            self.release(std::mem::replace(&mut current, shorter))?;
            changed = true;
        }
        Ok(changed.then_some(current))
    }
}

/// A random id that tells the level.
fn level_id(level: u32) -> Result<LayerId> {
    let path = std::path::Path::new("layers");
    let random = random_name().named("name in", path)?;
    Ok(format!("merged{level}-{random}").parse().expect("letters, digits and dashes make an id"))
}

/// How many times the content of a layer has been merged.
fn level_of(id: &LayerId) -> u32 {
    let digit = id.as_str().strip_prefix("merged").and_then(|rest| rest.split_once('-'));
    digit.and_then(|(level, _)| level.parse().ok()).unwrap_or(0)
}

/// The lowest run of [`FAN`] adjacent layers of one level that may be merged,
/// and the level of the result.
fn next_merge(layers: &[Layer], pinned: &HashSet<LayerId>) -> Option<(Range<usize>, u32)> {
    let level = |layer: &Layer| (!pinned.contains(layer.id())).then(|| level_of(layer.id()));
    let fits = |window: &[Layer]| {
        let first = level(&window[0])?;
        let home = window[0].home();
        let same = first < LEVEL_MAX && window.iter().all(|layer| level(layer) == Some(first) && layer.home() == home);
        same.then_some(first + 1)
    };
    let mut windows = layers.windows(FAN).enumerate().rev();
    windows.find_map(|(start, window)| Some((start..start + FAN, fits(window)?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(id: &str) -> Layer {
        Layer::new(id.parse().expect("an id"), format!("/store/layers/{id}").into())
    }

    /// Freezes `count` times, merging whenever something fits.
    fn depth_after(count: usize) -> usize {
        let pinned = HashSet::from(["image".parse().expect("an id")]);
        let mut layers = vec![layer("image")];
        let mut merges = 0;
        for number in 0..count {
            layers.insert(0, layer(&format!("{number}")));
            while let Some((range, level)) = next_merge(&layers, &pinned) {
                merges += 1;
                layers.splice(range, [layer(&format!("merged{level}-{merges}"))]);
            }
        }
        layers.len() - 1
    }

    #[test]
    fn depth_stays_bounded() {
        for count in [0, 1, 5, 6, 35, 500, 1_000, 1_295] {
            assert!(depth_after(count) <= DEPTH_AIM, "{count}");
        }
        assert_eq!(depth_after(5), 5);
        assert_eq!(depth_after(6), 1);
    }

    #[test]
    fn pinned_layers_and_layers_of_other_homes_are_left_alone() {
        let layers: Vec<Layer> = (0..6).map(|number| layer(&format!("{number}"))).collect();
        let pinned = HashSet::from([layers[3].id().clone()]);
        assert_eq!(next_merge(&layers, &pinned), None);
        let mut apart = layers.clone();
        apart[5] = Layer::new("5".parse().expect("an id"), "/store/spaces/a/content/layers/5".into());
        assert_eq!(next_merge(&apart, &HashSet::new()), None);
        assert_eq!(next_merge(&layers, &HashSet::new()), Some((0..6, 1)));
    }
}
