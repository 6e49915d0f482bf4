//! Squeezing a sandbox: copied and encoded while it runs, compared and dropped while it stands still.
//!
//! No write is ever lost: a page is only given up if, with all tasks of the sandbox standing still, it holds exactly what
//! was encoded. The tasks stand still for a copy and a comparison of each page and the dropping of its memory, not for
//! the encoding, which takes ten times as long.

use std::ops::Range;
use std::time::{Duration, Instant};

use brood_deltacr::{StoppedTree, Tree};
use brood_kernel::maps::{self, Mapping};
use brood_kernel::userfaultfd::Watch;
use brood_kernel::{process_copy, process_memory};
use brood_pager::{OwedMap, PageAddress, PagedSpace};
use brood_pages::cohort::Squeezer;
use brood_pages::{PAGE_SIZE, Page, PageNumber};
use rustix::io::Errno;
use rustix::process::Pid;

use crate::cohort::Kin;
use crate::engine::Kept;
use crate::error::{Result, kernel};
use crate::report::SqueezeReport;
use crate::sandbox_memory::{Processes, SandboxMemory, SqueezedProcess, squeezed_ranges, still_absent};
use crate::squeezed::SqueezedPages;
use crate::survey::{Survey, pages};

/// Pages that are encoded before the tasks are stopped to drop them: 8 MiB. More would make them stand still for longer
/// (about a microsecond a page), fewer more often (a fifth of a millisecond each time).
const PORTION_PAGES: usize = 2048;

/// Pages between looks at whether to go on: some ten microseconds.
const PAGES_BETWEEN_LOOKS: usize = 8;

/// Pages of one process in a portion.
struct Piece<'s> {
    pid: Pid,
    survey: &'s Survey,
    kin: Kin,
    ranges: Vec<Range<u64>>,
    /// They are whole mappings of files, which become anonymous memory.
    is_data: bool,
}

/// A piece whose pages are encoded: where each lies, how it is kept, and what it held.
struct EncodedPiece<'s> {
    pid: Pid,
    survey: &'s Survey,
    kin: Kin,
    ranges: Vec<Range<u64>>,
    is_data: bool,
    contents: Vec<u8>,
    kept: Vec<(PageNumber, Kept)>,
}

impl SandboxMemory {
    /// Squeezes all processes of a sandbox; stops early, with everything in order, when `go_on` says no.
    ///
    /// # Errors
    /// [`Error::Pool`](crate::Error::Pool) when the pool is full, others when the tasks can't be worked on; what was
    /// squeezed by then stays so.
    pub fn squeeze(&self, tree: &mut Tree, go_on: &dyn Fn() -> bool) -> Result<SqueezeReport> {
        let mut processes = self.lock();
        let mut report = SqueezeReport::default();
        let mut buffer = Vec::new();
        let mut surveys = Vec::new();
        for pid in tree.running()? {
            let survey = Survey::of(pid, &mut buffer)?;
            report.private_pages += survey.pages.iter().map(pages).sum::<usize>() + survey.written_data;
            report.left_alone_pages += survey.left_alone;
            surveys.push((pid, self.kin(&processes, tree, pid), survey));
        }
        report.processes = surveys.len();
        let mut squeezer = self.machinery.engine.squeezer();
        for portion in portions(&surveys) {
            if !go_on() {
                report.cancelled = true;
                break;
            }
            self.squeeze_portion(tree, &mut processes, &mut squeezer, portion, go_on, &mut report)?;
        }
        self.machinery.engine.settle(&self.cohort)?;
        Ok(report)
    }

    fn squeeze_portion(
        &self,
        tree: &mut Tree,
        processes: &mut Processes,
        squeezer: &mut Squeezer,
        portion: Vec<Piece<'_>>,
        go_on: &dyn Fn() -> bool,
        report: &mut SqueezeReport,
    ) -> Result<()> {
        let started = Instant::now();
        let mut encoded = Vec::with_capacity(portion.len());
        let mut failed = None;
        for piece in portion {
            let (piece, result) = self.encode(squeezer, piece, go_on, report);
            encoded.push(piece);
            if let Err(error) = result {
                failed = Some(error);
                break;
            }
        }
        report.encoding += started.elapsed();
        let dropped = match tree.stop() {
            Ok(mut stopped) => {
                let result = self.drop_unchanged(&mut stopped, processes, &mut encoded, report);
                let standstill = stopped.resume();
                report.standstill += standstill;
                report.standstill_longest = report.standstill_longest.max(standstill);
                result
            }
            Err(error) => Err(error.into()),
        };
        // What wasn't dropped is not needed.
        for (_, kept) in encoded.into_iter().flat_map(|piece| piece.kept) {
            self.machinery.engine.discard(kept)?;
        }
        failed.map_or(dropped, Err)
    }

    /// Copies and encodes the pages of a piece, as far as it comes.
    fn encode<'s>(
        &self,
        squeezer: &mut Squeezer,
        piece: Piece<'s>,
        go_on: &dyn Fn() -> bool,
        report: &mut SqueezeReport,
    ) -> (EncodedPiece<'s>, Result<()>) {
        let Piece { pid, survey, kin, ranges, is_data } = piece;
        let total: usize = ranges.iter().map(pages).sum();
        let mut piece =
            EncodedPiece { pid, survey, kin, ranges, is_data, contents: vec![0; total * PAGE_SIZE], kept: Vec::new() };
        let copied = match process_copy::gather(pid, &vectors(&piece.ranges), &mut piece.contents) {
            Ok(copied) => copied / PAGE_SIZE,
            Err(Errno::SRCH) => 0,
            Err(error) => return (piece, Err(kernel(pid, "copy pages")(error))),
        };
        let mut kept_pages = Vec::with_capacity(copied);
        let mut result = Ok(());
        let numbers = numbers(&piece.ranges).take(copied);
        for (index, (number, content)) in numbers.zip(page_contents(&piece.contents)).enumerate() {
            if index % PAGES_BETWEEN_LOOKS == 0 && !go_on() {
                report.cancelled = true;
                break;
            }
            match self.machinery.engine.keep(squeezer, &piece.kin, number, content) {
                Ok(kept) => kept_pages.push((number, kept)),
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        piece.kept = kept_pages;
        (piece, result)
    }

    /// Gives up the memory of pages that still hold what was encoded. What stays in `kept` of the pieces afterwards wasn't
    /// given up.
    fn drop_unchanged(
        &self,
        stopped: &mut StoppedTree<'_>,
        processes: &mut Processes,
        encoded: &mut [EncodedPiece<'_>],
        report: &mut SqueezeReport,
    ) -> Result<()> {
        let identities: Vec<_> = stopped.identities().map(|(identity, _)| identity).collect();
        processes.retain(|pid, _| identities.iter().any(|identity| identity.pid == *pid));
        let mut buffer = Vec::new();
        for piece in encoded.iter_mut().filter(|piece| !piece.kept.is_empty()) {
            if !identities.iter().any(|identity| identity.pid == piece.pid) {
                continue;
            }
            let mappings = maps::read(piece.pid, &mut buffer).map_err(kernel(piece.pid, "list the mappings"))?;
            let mut unchanged = unchanged(piece, &mappings)?;
            report.changed_pages += piece.kept.len() - unchanged.len();
            // Not only for speed: the kernel itself writes to the thread area when the task that drops the pages goes on,
            // and a page that is dropped but not owed yet would be zeros for it.
            let essential = stopped.essential_pages(piece.pid)?;
            unchanged.retain(|page| !essential.contains(&page.address()));
            if piece.is_data {
                keep_whole(&piece.ranges, &mappings, &mut unchanged);
            }
            if unchanged.is_empty() {
                continue;
            }
            let space = stopped.paged(piece.pid, &self.machinery.paging)?.id();
            let process = Self::process(processes, piece.pid, space, &piece.kin);
            if process.kin.lineage() != piece.kin.lineage() {
                // Another program by now: its pages belong elsewhere.
                continue;
            }
            self.drop_pages(stopped, process, piece, &mappings, &unchanged, report)?;
        }
        Ok(())
    }

    fn drop_pages(
        &self,
        stopped: &mut StoppedTree<'_>,
        process: &mut SqueezedProcess,
        piece: &mut EncodedPiece<'_>,
        mappings: &[Mapping],
        unchanged: &[PageNumber],
        report: &mut SqueezeReport,
    ) -> Result<()> {
        if piece.is_data {
            make_anonymous(stopped, piece, mappings, unchanged)?;
        }
        let space = stopped.paged(piece.pid, &self.machinery.paging)?;
        let watched = watch(space, mappings, unchanged, piece.pid)?;
        let refused = if piece.is_data {
            // There is no going on without what they held.
            write_back(piece, |page| unchanged.binary_search(&page).is_ok() && watched.binary_search(&page).is_err())?;
            Vec::new()
        } else {
            stopped.give_up_pages(piece.pid, &runs(&watched))?
        };
        let unchanged = &watched[..];
        let is_dropped = |page: PageNumber| {
            unchanged.binary_search(&page).is_ok() && !refused.iter().any(|range| range.contains(&page.address()))
        };
        let (dropped, rest): (Vec<_>, Vec<_>) = piece.kept.drain(..).partition(|(page, _)| is_dropped(*page));
        piece.kept = rest;
        self.count(&dropped, report)?;
        let space = stopped.paged(piece.pid, &self.machinery.paging)?;
        self.owe(space, process, dropped, mappings)
    }

    fn count(&self, dropped: &[(PageNumber, Kept)], report: &mut SqueezeReport) -> Result<()> {
        report.given_up_pages += dropped.len();
        for (_, kept) in dropped {
            match kept {
                Kept::Zero | Kept::AsTemplate => report.dropped_pages += 1,
                Kept::Pooled(entry, codec) => {
                    report.pages_by_codec[*codec as usize] += 1;
                    if *codec != brood_pages::codec::Codec::Duplicate {
                        report.frame_bytes += self.machinery.engine.read_pool().frame_bytes(*entry)? as u64;
                    }
                }
            }
        }
        Ok(())
    }

    /// Makes the process' set of squeezed pages anew, of those just dropped and those that are absent still, and has the
    /// pager supply them.
    fn owe(
        &self,
        space: &PagedSpace,
        process: &mut SqueezedProcess,
        dropped: Vec<(PageNumber, Kept)>,
        mappings: &[Mapping],
    ) -> Result<()> {
        let owed = space.owed();
        let kin = &process.kin;
        let mut all = dropped;
        let own = |pages: &SqueezedPages| {
            pages.kin().lineage() == kin.lineage() && pages.kin().cohort().id() == kin.cohort().id()
        };
        let new: Vec<PageNumber> = all.iter().map(|(page, _)| *page).collect();
        for (start, end, pages) in squeezed_ranges(&owed).filter(|(_, _, pages)| own(pages)) {
            for page in still_absent(&owed, start, end, pages) {
                if new.binary_search(&page).is_err()
                    && let Some(kept) = pages.kept(page)?
                {
                    all.push((page, kept));
                }
            }
        }
        all.sort_unstable_by_key(|(page, _)| *page);
        let pages = SqueezedPages::new(&self.machinery.engine, kin.clone(), &all)?;
        for range in owed_runs(&all, mappings, &foreign(&owed, own)) {
            let source = std::sync::Arc::clone(&pages) as std::sync::Arc<dyn brood_pager::PageSource>;
            let (start, end) = (PageAddress::of(range.start), PageAddress::of(range.end));
            space.owe(start..end, source, start);
        }
        process.pages = Some(pages);
        Ok(())
    }
}

/// Leaves only pages of mappings all of whose pages are among them, and which are what they were.
fn keep_whole(ranges: &[Range<u64>], mappings: &[Mapping], pages: &mut Vec<PageNumber>) {
    let is_whole = |range: &&Range<u64>| {
        let first = pages.partition_point(|page| page.address() < range.start);
        let end = pages.partition_point(|page| page.address() < range.end);
        let is_there = |mapping: &Mapping| mapping.start == range.start && mapping.end == range.end;
        end - first == self::pages(range) && mappings.iter().any(is_there)
    };
    let whole: Vec<Range<u64>> = ranges.iter().filter(is_whole).cloned().collect();
    pages.retain(|page| {
        let index = whole.partition_point(|range| range.end <= page.address());
        whole.get(index).is_some_and(|range| range.start <= page.address())
    });
}

/// Puts anonymous memory in the place of private mappings of files.
fn make_anonymous(
    stopped: &mut StoppedTree<'_>,
    piece: &EncodedPiece<'_>,
    mappings: &[Mapping],
    pages: &[PageNumber],
) -> Result<()> {
    let holds_pages = |range: &Range<u64>| {
        let first = pages.partition_point(|page| page.address() < range.start);
        pages.get(first).is_some_and(|page| page.address() < range.end)
    };
    let wanted = mappings.iter().map(|mapping| (mapping.start..mapping.end, mapping.protection));
    let wanted: Vec<_> = wanted.filter(|(range, _)| piece.ranges.contains(range) && holds_pages(range)).collect();
    Ok(stopped.make_anonymous(piece.pid, &wanted)?)
}

/// Writes what pages of a piece held to where it was.
fn write_back(piece: &EncodedPiece<'_>, is_wanted: impl Fn(PageNumber) -> bool) -> Result<()> {
    let memory = process_memory::open(piece.pid).map_err(kernel(piece.pid, "open the memory"))?;
    for (number, content) in numbers(&piece.ranges).zip(page_contents(&piece.contents)) {
        if is_wanted(number) {
            process_memory::write_forced(&memory, number.address(), content)
                .map_err(kernel(piece.pid, "write pages back"))?;
        }
    }
    Ok(())
}

/// Has touches of the mappings of pages reported; returns the pages for which that is possible. (A program may watch some
/// of its memory itself.)
fn watch(space: &PagedSpace, mappings: &[Mapping], pages: &[PageNumber], pid: Pid) -> Result<Vec<PageNumber>> {
    let mut watched = Vec::with_capacity(pages.len());
    for mapping in mappings {
        let first = pages.partition_point(|page| page.address() < mapping.start);
        let end = pages.partition_point(|page| page.address() < mapping.end);
        if first == end {
            continue;
        }
        let userfaultfd = space.userfaultfd();
        match userfaultfd.register(mapping.start, mapping.bytes(), Watch::MISSING | Watch::WRITES) {
            Ok(()) => watched.extend_from_slice(&pages[first..end]),
            Err(Errno::BUSY | Errno::INVAL | Errno::PERM) => {}
            Err(error) => return Err(kernel(pid, "watch the memory")(error)),
        }
    }
    Ok(watched)
}

/// Ranges that are owed by others, or by addresses at which they aren't any more.
fn foreign(owed: &OwedMap, own: impl Fn(&SqueezedPages) -> bool) -> Vec<Range<u64>> {
    let is_own = |start: u64, range: &brood_pager::OwedRange| {
        let pages = range.source.as_any().downcast_ref::<SqueezedPages>();
        pages.is_some_and(|pages| own(pages) && range.origin == start)
    };
    owed.ranges().filter(|(start, range)| !is_own(*start, range)).map(|(start, range)| start..range.end).collect()
}

/// Ranges that hold all pages and as few borders as possible: pages in between are present or zeros, which the set of
/// squeezed pages says of all that it doesn't have. They end with their mapping and before what others owe.
fn owed_runs(pages: &[(PageNumber, Kept)], mappings: &[Mapping], foreign: &[Range<u64>]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut mapping_end = 0;
    let is_foreign = |gap: Range<u64>| {
        let next = foreign.partition_point(|range| range.end <= gap.start);
        !gap.is_empty() && foreign.get(next).is_some_and(|range| range.start < gap.end)
    };
    for (page, _) in pages.iter().filter(|(_, kept)| *kept != Kept::Zero) {
        let (start, end) = (page.address(), page.address() + PAGE_SIZE as u64);
        if let Some(run) = runs.last_mut()
            && end <= mapping_end
            && !is_foreign(run.end..start)
        {
            run.end = end;
            continue;
        }
        let mapping = mappings.partition_point(|mapping| mapping.end <= start);
        mapping_end = mappings.get(mapping).map_or(end, |mapping| mapping.end);
        runs.push(start..end);
    }
    runs
}

/// Cuts the surveyed pages into portions.
fn portions<'s>(surveys: &'s [(Pid, Kin, Survey)]) -> Vec<Vec<Piece<'s>>> {
    let mut portions: Vec<Vec<Piece<'s>>> = Vec::new();
    let mut room = 0;
    for (pid, kin, survey) in surveys {
        let mut fresh = true;
        for range in &survey.pages {
            let mut start = range.start;
            while start < range.end {
                if room == 0 {
                    portions.push(Vec::new());
                    (room, fresh) = (PORTION_PAGES, true);
                }
                let end = range.end.min(start + (room * PAGE_SIZE) as u64);
                let Some(portion) = portions.last_mut() else { break };
                if std::mem::take(&mut fresh) {
                    portion.push(Piece { pid: *pid, survey, kin: kin.clone(), ranges: Vec::new(), is_data: false });
                }
                if let Some(piece) = portion.last_mut() {
                    piece.ranges.push(start..end);
                }
                room -= pages(&(start..end));
                start = end;
            }
        }
        let mut fresh = true;
        for range in &survey.data {
            if room < pages(range) {
                portions.push(Vec::new());
                (room, fresh) = (PORTION_PAGES, true);
            }
            room -= pages(range);
            let Some(portion) = portions.last_mut() else { break };
            if std::mem::take(&mut fresh) {
                portion.push(Piece { pid: *pid, survey, kin: kin.clone(), ranges: Vec::new(), is_data: true });
            }
            if let Some(piece) = portion.last_mut() {
                piece.ranges.push(range.clone());
            }
        }
    }
    portions
}

/// The encoded pages that hold what they held, in mappings that are what they were.
fn unchanged(piece: &EncodedPiece<'_>, mappings: &[Mapping]) -> Result<Vec<PageNumber>> {
    let mut contents = vec![0; piece.contents.len()];
    let copied = process_copy::gather(piece.pid, &vectors(&piece.ranges), &mut contents)
        .map_err(kernel(piece.pid, "copy pages"))?;
    let same = page_contents(&piece.contents).zip(page_contents(&contents)).take(copied / PAGE_SIZE);
    let pages = piece.kept.iter().zip(same).filter(|(_, (before, now))| before == now);
    let is_same = |page: &PageNumber| is_same_mapping(piece.survey, mappings, *page);
    Ok(pages.map(|((page, _), _)| *page).filter(is_same).collect())
}

/// Whether a page is in the same mapping as at the survey, which may have grown (as heaps do).
fn is_same_mapping(survey: &Survey, now: &[Mapping], page: PageNumber) -> bool {
    let find = |mappings: &[Mapping]| {
        let index = mappings.partition_point(|mapping| mapping.end <= page.address());
        mappings.get(index).filter(|mapping| mapping.start <= page.address()).cloned()
    };
    match (find(&survey.mappings), find(now)) {
        (Some(before), Some(now)) => {
            Mapping { start: now.start, end: now.end, ..before.clone() } == now && {
                (now.start == before.start && now.end >= before.end)
                    || (now.end == before.end && now.start <= before.start)
            }
        }
        _ => false,
    }
}

fn vectors(ranges: &[Range<u64>]) -> Vec<(u64, usize)> {
    ranges.iter().map(|range| (range.start, pages(range) * PAGE_SIZE)).collect()
}

fn numbers(ranges: &[Range<u64>]) -> impl Iterator<Item = PageNumber> {
    ranges.iter().flat_map(|range| (range.start..range.end).step_by(PAGE_SIZE).map(PageNumber::containing))
}

fn page_contents(bytes: &[u8]) -> impl Iterator<Item = &Page> {
    bytes.as_chunks::<PAGE_SIZE>().0.iter()
}

/// Pages in a row as ranges of addresses.
fn runs(pages: &[PageNumber]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for page in pages {
        let (start, end) = (page.address(), page.address() + PAGE_SIZE as u64);
        match runs.last_mut() {
            Some(run) if run.end == start => run.end = end,
            _ => runs.push(start..end),
        }
    }
    runs
}

/// How long encoding and dropping took for each page, for reports.
#[must_use]
pub fn pages_per_second(report: &SqueezeReport) -> f64 {
    let busy: Duration = report.encoding + report.standstill;
    if busy.is_zero() { 0.0 } else { report.given_up_pages as f64 / busy.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_owed_ends_with_mappings_and_at_what_others_owe() {
        let text = b"0000-a000 rw-p 00000000 00:00 0 \na000-20000 rw-p 00000000 00:00 0 \n";
        let mappings = maps::parse(text).unwrap();
        let pages =
            |numbers: &[u64]| -> Vec<_> { numbers.iter().map(|n| (PageNumber(*n), Kept::AsTemplate)).collect() };
        let runs = |numbers: &[u64], foreign: &[Range<u64>]| owed_runs(&pages(numbers), &mappings, foreign);
        assert_eq!(runs(&[1, 3, 9, 10], &[]), [0x1000..0xa000, 0xa000..0xb000]);
        let one = 0x4000..0x6000;
        assert_eq!(runs(&[1, 3, 9], std::slice::from_ref(&one)), [0x1000..0x4000, 0x9000..0xa000]);
        let wide = 0x2000..0x9000;
        // Pages that lie where another owed: only what follows directly is joined to them.
        assert_eq!(runs(&[4, 5, 7], std::slice::from_ref(&wide)), [0x4000..0x6000, 0x7000..0x8000]);
        let zero = [(PageNumber(1), Kept::Zero), (PageNumber(2), Kept::AsTemplate), (PageNumber(12), Kept::AsTemplate)];
        assert_eq!(owed_runs(&zero, &mappings, &[]), [0x2000..0x3000, 0xc000..0xd000]);
    }

    #[test]
    fn of_a_mapping_all_pages_go_or_none() {
        let text = b"1000-3000 rw-p 0 08:01 7 /a\n3000-5000 rw-p 0 08:01 7 /a\n8000-9000 r--p 0 08:01 8 /b\n";
        let ranges = [0x1000..0x3000, 0x3000..0x5000, 0x8000..0x9000, 0xa000..0xb000];
        let mut pages = [1, 2, 4, 8, 10].map(PageNumber).to_vec();
        keep_whole(&ranges, &maps::parse(text).unwrap(), &mut pages);
        assert_eq!(pages, [1, 2, 8].map(PageNumber));
    }

    #[test]
    fn neighbouring_pages_are_one_run() {
        assert_eq!(runs(&[1, 2, 5].map(PageNumber)), [0x1000..0x3000, 0x5000..0x6000]);
    }
}
