//! Pages of real sibling processes: a Python template that forks, each sibling then working for itself.
//!
//! Forked siblings agree on addresses, and the kernel says which of their pages are still the template's: just what a cohort
//! of sandboxes looks like. Everything goes away when the corpus is gathered.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};

use brood_pages::{PAGE_SIZE, Page, PageNumber};

/// How much siblings differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// The same work with some other values.
    NearIdentical,
    /// Other work in each.
    Divergent,
}

/// A template's pages and those that each sibling has for itself.
pub struct Corpus {
    pub template: HashMap<PageNumber, Box<Page>>,
    pub siblings: Vec<Vec<(PageNumber, Box<Page>)>>,
}

impl Corpus {
    pub fn template(&self, page: PageNumber) -> Option<&Page> {
        self.template.get(&page).map(|page| &**page)
    }

    pub fn private_pages(&self) -> usize {
        self.siblings.iter().map(Vec::len).sum()
    }
}

/// Gathers pages of `count` siblings. The interpreter is `BROOD_PYTHON` or `python3`; without one, or without the right to
/// read its memory, this says so loudly and returns `None`.
pub fn gather(work: Work, count: usize) -> Option<Corpus> {
    match try_gather(work, count) {
        Ok(corpus) => Some(corpus),
        Err(error) => {
            eprintln!("SKIPPED: no pages of real processes: {error}");
            None
        }
    }
}

/// Ends the template, which ends its siblings.
struct Template(Child);

impl Drop for Template {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Err(error) = self.0.wait() {
            eprintln!("template process was not reaped: {error}");
        }
    }
}

fn try_gather(work: Work, count: usize) -> io::Result<Corpus> {
    let python = std::env::var("BROOD_PYTHON").unwrap_or_else(|_| "python3".into());
    let kind = if work == Work::NearIdentical { "near" } else { "divergent" };
    let mut command = Command::new(python);
    command.args(["-c", include_str!("siblings.py"), kind, &count.to_string()]);
    command.env("PYTHONHASHSEED", "0").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut template = Template(command.spawn()?);
    let mut lines = BufReader::new(template.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?).lines();
    let mut line = move || lines.next().unwrap_or(Err(io::ErrorKind::UnexpectedEof.into()));
    line()?;
    let pid = template.0.id();
    let pages: HashMap<_, _> = anonymous_pages(pid)?.into_iter().map(|(page, _, content)| (page, content)).collect();
    template.0.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write_all(b"\n")?;
    let pids = line()?;
    let frames: HashMap<_, _> = anonymous_pages(pid)?.into_iter().map(|(page, frame, _)| (page, frame)).collect();
    let mut siblings = Vec::new();
    for pid in pids.split_whitespace() {
        let own = anonymous_pages(pid.parse().map_err(io::Error::other)?)?.into_iter();
        // Without the right to see frame numbers they are all zero: pages with the template's content are left out then.
        let private = own.filter(|(page, frame, content)| match (frames.get(page), pages.get(page)) {
            (Some(0), Some(old)) => content != old,
            (Some(template), _) => template != frame,
            (None, _) => true,
        });
        siblings.push(private.map(|(page, _, content)| (page, content)).collect());
    }
    Ok(Corpus { template: pages, siblings })
}

const PRESENT: u64 = 1 << 63;
const FILE_OR_SHARED: u64 = 1 << 61;
const FRAME: u64 = (1 << 55) - 1;

/// Number, page frame and content of each anonymous page of a process.
fn anonymous_pages(pid: u32) -> io::Result<Vec<(PageNumber, u64, Box<Page>)>> {
    let memory = File::open(format!("/proc/{pid}/mem"))?;
    let pagemap = File::open(format!("/proc/{pid}/pagemap"))?;
    let mut pages = Vec::new();
    for line in fs::read_to_string(format!("/proc/{pid}/maps"))?.lines() {
        let mut fields = line.split_whitespace();
        let (Some(range), Some(access)) = (fields.next(), fields.next()) else { continue };
        if !access.starts_with('r') || !access.ends_with('p') || line.ends_with(']') && line.contains("[v") {
            continue;
        }
        let mut bounds = range.split('-').map(|bound| u64::from_str_radix(bound, 16).map_err(io::Error::other));
        let (Some(start), Some(end)) = (bounds.next(), bounds.next()) else { continue };
        let first = PageNumber::containing(start?).0;
        let count = PageNumber::containing(end?).0 - first;
        let mut entries = vec![0; count as usize * 8];
        pagemap.read_exact_at(&mut entries, first * 8)?;
        for (page, entry) in (first..).zip(entries.as_chunks().0) {
            let entry = u64::from_le_bytes(*entry);
            if entry & PRESENT != 0 && entry & FILE_OR_SHARED == 0 {
                let mut content = Box::new([0; PAGE_SIZE]);
                memory.read_exact_at(&mut *content, PageNumber(page).address())?;
                pages.push((PageNumber(page), entry & FRAME, content));
            }
        }
    }
    Ok(pages)
}
