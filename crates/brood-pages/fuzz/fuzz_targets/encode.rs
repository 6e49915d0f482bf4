//! Any page against any references: what the encoder writes, the decoder must read back.
//!
//! `cargo fuzz run -s none encode` in `crates/brood-pages`. Input: two bytes of codecs, one of flags, then edits
//! (position, length, value) that make template, sibling and page out of each other.

#![no_main]

use brood_pages::codec::{Candidates, Codec, CodecSet, Decoder, Encoder, EncoderSettings, References, frame};
use brood_pages::{EntryId, PAGE_SIZE, Page};
use libfuzzer_sys::fuzz_target;

fn edit(page: &mut Page, edits: &[u8]) {
    for edit in edits.chunks_exact(5) {
        let at = usize::from(u16::from_le_bytes([edit[0], edit[1]])) % PAGE_SIZE;
        let end = PAGE_SIZE.min(at + usize::from(edit[2]));
        for (i, byte) in page[at..end].iter_mut().enumerate() {
            *byte = byte.wrapping_add(edit[3]).wrapping_add(edit[4].wrapping_mul(i as u8));
        }
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&[low, high, flags], edits)) = bytes.split_first_chunk() else { return };
    let (first, rest) = edits.split_at(edits.len() / 3);
    let (second, third) = rest.split_at(rest.len() / 2);
    let mut template = [0; PAGE_SIZE];
    edit(&mut template, first);
    let mut sibling = if flags & 1 == 0 { template } else { [0; PAGE_SIZE] };
    edit(&mut sibling, second);
    let mut page = if flags & 2 == 0 { sibling } else { template };
    edit(&mut page, third);
    let bits = u16::from_le_bytes([low, high]);
    let codecs = Codec::ALL.into_iter().filter(|codec| bits >> *codec as u16 & 1 == 1);
    let codecs = codecs.fold(CodecSet::ALL, CodecSet::without);
    let id = EntryId::from_bits(u32::from(flags));
    let entries = [(id, &sibling)];
    let candidates = Candidates {
        template: (flags & 4 == 0).then_some(&template),
        entries: if flags & 8 == 0 { &entries } else { &[] },
        dictionary: None,
    };
    let mut encoder = Encoder::new(EncoderSettings { codecs, ..Default::default() });
    let encoded = encoder.encode(&page, candidates);
    let frame = frame::parse(encoded.frame).expect("an encoder's frame");
    let references = References { template: candidates.template, entry: Some(&sibling), dictionary: None };
    let mut back = [1; PAGE_SIZE];
    Decoder::new().decode(frame, references, &mut back).expect("an encoder's frame");
    assert!(back == page, "{:?} came back wrong", encoded.codec);
});
