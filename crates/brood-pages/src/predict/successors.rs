//! What followed a page before.

use crate::page::{PageKey, PageNumber};

/// Successors that are remembered for a page.
const WAYS: usize = 4;

/// What one observation adds to a confidence, and takes from those of the page's other successors.
const GAIN: u8 = 56;
const LOSS: u8 = 12;

/// How many pages ahead the chain of likeliest successors is followed.
const DEPTH: usize = 4;

/// A bounded table from pages to what followed them. Keys collide by hash: the newer page takes the place.
#[derive(Clone, Debug)]
pub struct Successors {
    places: Vec<Place>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Tells pages of one place apart; 0 is an empty place.
    tag: u32,
    /// Distances to the successors, in pages.
    steps: [i32; WAYS],
    confidences: [u8; WAYS],
}

impl Successors {
    /// Bytes of memory for each page that is remembered.
    pub const PLACE_BYTES: usize = size_of::<Place>();

    /// A table that remembers about `capacity` pages.
    #[must_use]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { places: vec![Place::default(); capacity.next_power_of_two()] }
    }

    /// Learns that `next` followed `page`. Only successors in the same process and within 8 TiB are remembered.
    pub fn followed(&mut self, page: PageKey, next: PageKey) {
        let Ok(step) = i32::try_from(next.page.0.wrapping_sub(page.page.0) as i64) else { return };
        if page.lineage != next.lineage || step == 0 {
            return;
        }
        let (at, tag) = self.place(page);
        let place = &mut self.places[at];
        if place.tag != tag {
            *place = Place { tag, ..Place::default() };
        }
        let known = (0..WAYS).find(|way| place.steps[*way] == step && place.confidences[*way] != 0);
        let way = known.unwrap_or_else(|| {
            let weakest = (0..WAYS).min_by_key(|way| place.confidences[*way]).unwrap_or(0);
            (place.steps[weakest], place.confidences[weakest]) = (step, 0);
            weakest
        });
        for other in (0..WAYS).filter(|other| *other != way) {
            place.confidences[other] = place.confidences[other].saturating_sub(LOSS);
        }
        place.confidences[way] = place.confidences[way].saturating_add(GAIN);
    }

    /// Calls `predict` with the successors of a page, and with those of its likeliest successor and so on. Confidence falls
    /// along the chain.
    pub fn predict(&self, page: PageKey, mut predict: impl FnMut(PageKey, u8)) {
        let mut from = page;
        let mut scale = 255u32;
        for _ in 0..DEPTH {
            let (at, tag) = self.place(from);
            let place = &self.places[at];
            if place.tag != tag {
                return;
            }
            let mut best: Option<(PageKey, u8)> = None;
            for way in 0..WAYS {
                let confidence = (u32::from(place.confidences[way]) * scale / 255) as u8;
                let next = from.page.0.checked_add_signed(i64::from(place.steps[way]));
                if let (1.., Some(next)) = (confidence, next) {
                    let next = PageKey { page: PageNumber(next), ..from };
                    predict(next, confidence);
                    best = best.filter(|(_, other)| *other >= confidence).or(Some((next, confidence)));
                }
            }
            let Some((next, confidence)) = best else { return };
            (from, scale) = (next, u32::from(confidence));
        }
    }

    /// Forgets a part of everything: what is not seen again fades.
    pub fn decay(&mut self) {
        for place in &mut self.places {
            for confidence in &mut place.confidences {
                *confidence -= confidence.div_ceil(8);
            }
        }
    }

    /// Bytes of memory that the table takes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.places.capacity() * Self::PLACE_BYTES
    }

    fn place(&self, key: PageKey) -> (usize, u32) {
        let hash = (key.page.0 ^ u64::from(key.lineage.0) << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((hash >> 20) as usize & (self.places.len() - 1), (hash >> 32) as u32 | 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn key(page: u64) -> PageKey {
        PageKey { page: PageNumber(page), ..Default::default() }
    }

    #[test]
    fn a_chain_is_learnt_unlearnt_and_forgotten() {
        let mut table = Successors::with_capacity(1024);
        let chain = [5u64, 900, 17, 40_000, 3];
        for _ in 0..5 {
            chain.windows(2).for_each(|pair| table.followed(key(pair[0]), key(pair[1])));
        }
        let mut seen = Vec::new();
        table.predict(key(5), |key, confidence| seen.push((key.page.0, confidence)));
        assert_eq!(seen.iter().map(|(page, _)| *page).collect::<Vec<_>>(), chain[1..]);
        assert!(seen.iter().all(|(_, confidence)| *confidence > 200));
        for _ in 0..5 {
            table.followed(key(5), key(77));
        }
        let mut best = (0, 0);
        table.predict(key(5), |key, confidence| best = best.max((confidence, key.page.0)));
        assert_eq!(best.1, 77);
        (0..60).for_each(|_| table.decay());
        table.predict(key(5), |key, _| panic!("{key:?} is remembered for ever"));
    }

    proptest! {
        #[test]
        fn any_history_is_survived_within_bounds(
            pages in proptest::collection::vec((any::<u64>(), any::<u64>()), 0..500)
        ) {
            let mut table = Successors::with_capacity(64);
            let bytes = table.memory_bytes();
            for (page, next) in pages {
                table.followed(key(page), key(next));
                let mut count = 0;
                table.predict(key(page), |_, _| count += 1);
                prop_assert!(count <= WAYS * DEPTH);
            }
            prop_assert_eq!(table.memory_bytes(), bytes);
        }
    }
}
