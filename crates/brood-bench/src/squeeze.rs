//! What squeezing saves and costs: sixteen forks of one warm Python session with numpy, each after work of its own.
//!
//! Runs an engine of its own in this process. Memory before is that of the very same forks, unsqueezed: pages that they
//! share with their checkpoint are private to none and not counted. Memory after has everything in it: pages that stayed,
//! the pool with its free bytes, reference pages, tables and indexes; page tables are told beside it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use brood_sandbox::build::Quiet;
use brood_sandbox::engine::{Engine, EngineSettings};
use brood_sandbox::error::EngineError;
use brood_sandbox::memory::{MemoryFigures, SqueezeInfo};
use brood_sandbox::model::{BuildRequest, CreateRequest, ProcessRequest};
use brood_sandbox::output::{OutputEvent, SubscribeFrom, Subscription};
use brood_sandbox::process::Process;
use brood_sandbox::sandbox::Sandbox;
use serde::Serialize;

use crate::{Distribution, Environment, Samples};

/// The session that is forked.
const SESSION: &str = include_str!("squeeze/session.py");
/// Where the template comes from.
const SOURCE: &str = "debian:bookworm+python3,python3-numpy";
const TEMPLATE: &str = "bench-squeeze";
/// Forks in each set.
const SIBLINGS: usize = 16;
/// Rounds of touching.
const ROUNDS: usize = 8;

/// How to run it.
#[derive(Debug, Clone)]
pub struct Options {
    /// State of the engine: the template is built there once.
    pub state_directory: PathBuf,
    /// What ends with it.
    pub run_directory: PathBuf,
    /// The guardian's program, as for [`EngineSettings::guardian`].
    pub guardian: Option<Vec<std::ffi::OsString>>,
    /// A quarter of the siblings: a look, not a measurement.
    pub quick: bool,
}

/// One set of siblings.
#[derive(Debug, Clone, Serialize)]
pub struct Set {
    /// Share of private memory that squeezing saved.
    pub saved: f64,
    /// Private memory before, divided by that after.
    pub ratio: f64,
    /// Private memory of all siblings, in bytes.
    pub bytes_before: u64,
    /// What is left of it, everything counted, in bytes.
    pub bytes_after: u64,
    /// The parts of `bytes_after`: pages that can't be squeezed.
    pub left_alone_bytes: u64,
    /// Other pages that stayed.
    pub stayed_bytes: u64,
    /// The pool's memory.
    pub pool_bytes: u64,
    /// Tables, indexes, dictionaries.
    pub metadata_bytes: u64,
    /// Page tables, in no other figure.
    pub page_table_bytes: u64,
    /// Pages encoded and given up a second, the tasks' standstill included.
    pub encode_pages_per_s: f64,
    /// Standstill of a sandbox' tasks while it is squeezed, all together.
    pub standstill_ms: Option<Distribution>,
    /// The longest in a row.
    pub standstill_longest_ms: Option<Distribution>,
    /// Pages by how they are kept.
    pub by_codec: BTreeMap<String, usize>,
    /// Bytes of metadata for each squeezed page.
    pub metadata_bytes_per_page: f64,
}

/// How long touches of squeezed pages take, as the program that touches sees it, in microseconds.
#[derive(Debug, Clone, Serialize)]
pub struct Blocking {
    /// One process at a time.
    pub alone: Option<Distribution>,
    /// All siblings at once.
    pub together: Option<Distribution>,
    /// How many siblings that are.
    pub processes: usize,
}

/// All figures.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Siblings that did the same work with other values.
    pub near_identical: Set,
    /// Siblings that did different work.
    pub divergent: Set,
    /// Touches of absent pages.
    pub blocking_restore_us: Blocking,
    /// Pages brought back a second when all are.
    pub bulk_restore_pages_per_s: f64,
    /// The larger of the two sets'.
    pub metadata_bytes_per_page: f64,
    /// What it was measured on.
    pub environment: Environment,
}

/// Measures. Blocks: a thread of its own should call it.
///
/// # Errors
/// When the template can't be built, a session fails, or the host can't squeeze.
pub fn run(options: &Options, say: &dyn Fn(&str)) -> Result<Report> {
    let environment = Environment::here(&options.state_directory);
    let mut settings = EngineSettings::new(options.state_directory.clone(), options.run_directory.clone());
    settings.guardian.clone_from(&options.guardian);
    let engine = Engine::open(settings).map_err(told)?;
    let measured = measure(&engine, options, say, environment);
    engine.shutdown();
    measured
}

fn measure(engine: &Engine, options: &Options, say: &dyn Fn(&str), environment: Environment) -> Result<Report> {
    build(engine, say)?;
    say("a warm session");
    let origin = engine.create(create_request()?).map_err(told)?;
    let warm = Session::start(&origin)?;
    let checkpoint = origin.checkpoint(None, true).map_err(told)?;
    drop(warm);
    origin.kill().map_err(told)?;
    let siblings = if options.quick { SIBLINGS / 4 } else { SIBLINGS };
    say("near-identical siblings");
    let near = Siblings::fork(engine, checkpoint.id.as_str(), siblings)?;
    let (near_set, near) = near.squeeze("near")?;
    let (blocking, bulk) = near.touch_and_restore()?;
    drop(near);
    say("divergent siblings");
    let (divergent, forks) = Siblings::fork(engine, checkpoint.id.as_str(), siblings)?.squeeze("divergent")?;
    drop(forks);
    Ok(Report {
        metadata_bytes_per_page: near_set.metadata_bytes_per_page.max(divergent.metadata_bytes_per_page),
        near_identical: near_set,
        divergent,
        blocking_restore_us: blocking,
        bulk_restore_pages_per_s: bulk,
        environment,
    })
}

fn told(error: EngineError) -> anyhow::Error {
    anyhow::anyhow!("{}", error.chain())
}

fn build(engine: &Engine, say: &dyn Fn(&str)) -> Result<()> {
    if engine.template(&TEMPLATE.parse()?).is_ok() {
        return Ok(());
    }
    say("the template, once");
    let request = BuildRequest {
        name: TEMPLATE.parse()?,
        source: SOURCE.to_owned(),
        steps: Vec::new(),
        environment: BTreeMap::new(),
        working_directory: None,
        user: None,
        start_command: None,
        ready_command: None,
        no_cache: false,
    };
    engine.build_template(request, &Quiet).map_err(told)?;
    Ok(())
}

fn create_request() -> Result<CreateRequest> {
    Ok(CreateRequest::plain(TEMPLATE.parse()?))
}

/// A Python session in a sandbox.
struct Session {
    process: Arc<Process>,
    output: Subscription,
}

impl Session {
    fn start(sandbox: &Arc<Sandbox>) -> Result<Self> {
        let arguments = ["python3", "-c", SESSION].map(str::to_owned).to_vec();
        // One thread, so that figures can be compared.
        let environment = BTreeMap::from([("OPENBLAS_NUM_THREADS".to_owned(), "1".to_owned())]);
        let request = ProcessRequest {
            arguments,
            environment,
            user: None,
            working_directory: None,
            terminal: None,
            stdin: true,
            timeout: None,
            background: true,
            tag: Some("session".to_owned()),
        };
        let (process, output) = sandbox.spawn_with_output(request).map_err(told)?;
        let mut session = Self { process, output };
        let line = session.line()?;
        if line != "ready" {
            bail!("the session said {line:?}");
        }
        Ok(session)
    }

    fn find(sandbox: &Arc<Sandbox>) -> Result<Self> {
        let process = sandbox.process_by_tag("session").map_err(told)?;
        let output = process.subscribe(SubscribeFrom::Now);
        Ok(Self { process, output })
    }

    fn line(&mut self) -> Result<String> {
        let mut text = String::new();
        while !text.ends_with('\n') {
            match self.output.next_blocking() {
                Some(OutputEvent::Data { bytes, .. }) => text.push_str(&String::from_utf8_lossy(&bytes)),
                other => bail!("the session ended after {text:?}: {other:?}"),
            }
        }
        Ok(text.trim_end().to_owned())
    }

    fn send(&self, expression: &str) -> Result<()> {
        self.process.write_stdin(format!("{expression}\n").as_bytes())?;
        Ok(())
    }

    fn times_us(&mut self, into: &mut Samples) -> Result<()> {
        let times: Vec<f64> = serde_json::from_str(&self.line()?).context("times of touches")?;
        times.into_iter().for_each(|nanoseconds| into.push(nanoseconds / 1e3));
        Ok(())
    }
}

/// Forks of one session. They are killed when this is dropped.
struct Siblings {
    forks: Vec<(Arc<Sandbox>, Session)>,
}

impl Drop for Siblings {
    fn drop(&mut self) {
        for (sandbox, _) in &self.forks {
            if let Err(error) = sandbox.kill() {
                eprintln!("a sandbox could not be ended: {}", error.chain());
            }
        }
    }
}

impl Siblings {
    fn fork(engine: &Engine, checkpoint: &str, count: usize) -> Result<Self> {
        let mut siblings = Self { forks: Vec::with_capacity(count) };
        for _ in 0..count {
            let sandbox = engine.fork(checkpoint).map_err(told)?;
            let session = Session::find(&sandbox)?;
            siblings.forks.push((sandbox, session));
        }
        Ok(siblings)
    }

    /// Has all do their work, and squeezes them.
    fn squeeze(mut self, work: &str) -> Result<(Set, Self)> {
        for (seed, (_, session)) in self.forks.iter_mut().enumerate() {
            session.send(&format!("{work}({seed})"))?;
            session.line()?;
        }
        let before = self.figures()?;
        let mut infos = Vec::with_capacity(self.forks.len());
        for (sandbox, _) in &self.forks {
            infos.push(sandbox.squeeze().map_err(told)?);
        }
        let after = self.figures()?;
        Ok((set_of(&before, &after, &infos), self))
    }

    fn figures(&self) -> Result<Vec<MemoryFigures>> {
        self.forks.iter().map(|(sandbox, _)| sandbox.memory_figures().map_err(told)).collect()
    }

    /// Touches squeezed pages, one sibling at a time and all at once; then brings everything back.
    fn touch_and_restore(&self) -> Result<(Blocking, f64)> {
        let (mut alone, mut together) = (Samples::new(), Samples::new());
        let mut sessions: Vec<Session> =
            self.forks.iter().map(|(sandbox, _)| Session::find(sandbox)).collect::<Result<_>>()?;
        for round in 0..ROUNDS {
            // The first touch of the loop's own code and objects is not of interest.
            for (index, session) in sessions.iter_mut().enumerate() {
                if index % ROUNDS == round {
                    session.send("touch()")?;
                    session.times_us(&mut alone)?;
                }
            }
            self.squeeze_again()?;
            sessions.iter().try_for_each(|session| session.send("touch()"))?;
            sessions.iter_mut().try_for_each(|session| session.times_us(&mut together))?;
            self.squeeze_again()?;
        }
        let started = Instant::now();
        let mut pages = 0;
        for (sandbox, _) in &self.forks {
            pages += sandbox.restore_pages().map_err(told)?.pages;
        }
        let bulk = pages as f64 / started.elapsed().as_secs_f64();
        let processes = self.forks.len();
        Ok((Blocking { alone: alone.distribution(), together: together.distribution(), processes }, bulk))
    }

    fn squeeze_again(&self) -> Result<()> {
        for (sandbox, _) in &self.forks {
            sandbox.squeeze().map_err(told)?;
        }
        Ok(())
    }
}

fn set_of(before: &[MemoryFigures], after: &[MemoryFigures], infos: &[SqueezeInfo]) -> Set {
    let sum = |of: &dyn Fn(&MemoryFigures) -> u64, figures: &[MemoryFigures]| figures.iter().map(of).sum::<u64>();
    let bytes_before = sum(&|figures| figures.private_bytes, before);
    let left_alone_bytes = sum(&|figures| figures.left_alone_bytes, after);
    let stayed_bytes = sum(&|figures| figures.private_bytes, after) - left_alone_bytes;
    // Shared by all: counted once.
    let pool_bytes = after.iter().map(|figures| figures.cohort_pool_bytes).max().unwrap_or(0);
    let shared_metadata = after.iter().map(|figures| figures.cohort_metadata_bytes).max().unwrap_or(0);
    let metadata_bytes = shared_metadata + sum(&|figures| figures.metadata_bytes, after);
    let bytes_after = left_alone_bytes + stayed_bytes + pool_bytes + metadata_bytes;
    let pages: usize = infos.iter().map(|info| info.given_up_pages).sum();
    let squeezed: usize = after.iter().map(|figures| figures.squeezed_pages).sum();
    let busy_us: u64 = infos.iter().map(|info| info.encoding_us + info.standstill_us).sum();
    let mut by_codec = BTreeMap::new();
    for share in infos.iter().flat_map(|info| &info.by_codec) {
        *by_codec.entry(share.codec.clone()).or_default() += share.pages;
    }
    let distribution = |of: &dyn Fn(&SqueezeInfo) -> u64| {
        let mut samples = Samples::new();
        infos.iter().for_each(|info| samples.push(of(info) as f64 / 1e3));
        samples.distribution()
    };
    Set {
        saved: 1.0 - bytes_after as f64 / bytes_before as f64,
        ratio: bytes_before as f64 / bytes_after as f64,
        bytes_before,
        bytes_after,
        left_alone_bytes,
        stayed_bytes,
        pool_bytes,
        metadata_bytes,
        page_table_bytes: sum(&|figures| figures.page_table_bytes, after),
        encode_pages_per_s: pages as f64 / (busy_us as f64 / 1e6),
        standstill_ms: distribution(&|info| info.standstill_us),
        standstill_longest_ms: distribution(&|info| info.standstill_longest_us),
        by_codec,
        metadata_bytes_per_page: metadata_bytes as f64 / squeezed.max(1) as f64,
    }
}
