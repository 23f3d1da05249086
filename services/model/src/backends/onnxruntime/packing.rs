//! The packed graph of a model (`trireme_packing`), if it is to serve: it is made, compared with the plain graph over rows of unequal lengths, and
//! measured beside it.
//!
//! Off by default. The packed graph is made at each load, or kept with the optimised models; which of the two is faster is kept beside the
//! costs of runs. Where the plain graph serves, one line says why.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use ort::environment::Environment;
use trireme_engine::{ExecuteRequest, LoadError, doing};
use trireme_model_repository::{ModelConfig, TemporaryFolder};
use trireme_packing::Packed;

use super::accelerators::InstanceDevice;
use super::cost_cache::{Entry, Rates};
use super::instance::OnnxInstance;
use super::levels::Levelled;
use super::options::OnnxRuntimeOptions;
use super::schema::Schema;
use super::sessions::Sessions;
use super::settings::Settings;
use super::shared::InstanceSession;
use super::{caches, graph_cache, measure, probe};
use crate::batcher::Declaration;
use crate::batcher::packing::{GROUPS, Packing, TOKEN_BUDGET};

/// Vectors may differ by this part of their length: sums in another order, in numbers of 32 bits.
const SAME: f32 = 1e-5;

/// Lengths of the rows that are compared, beside those of the model's own tokenizer.
const COMPARED: [u32; 4] = [3, 8, 5, 2];

/// Lengths of the rows that are timed: those of some texts in the order of their arrival.
const TIMED: [u32; 24] =
    [31, 18, 9, 60, 14, 24, 41, 110, 12, 27, 22, 7, 75, 19, 35, 16, 20, 48, 11, 29, 90, 15, 25, 38];

/// Most tokens of a timed run of the plain graph, padding included: larger runs of so few texts would pad too much.
const PLAIN_BUDGETS: [u32; 3] = [128, 256, 512];

/// Most tokens of a timed run of the packed graph. The smallest of these budgets serves that is nearly as fast as the fastest one, because
/// the next request waits for the run under way.
const PACKED_BUDGETS: [u32; 4] = [192, 256, 384, 576];
const NEARLY: f64 = 0.98;

/// The least time of so many rounds counts. Behind the first round nothing begins after the limit, and a slow model is timed with
/// fewer texts, though with so many of them.
const ROUNDS: usize = 4;
const TIME_LIMIT: Duration = Duration::from_millis(2500);
const FEWEST_TEXTS: usize = 8;

/// A model whose graph may be packed.
pub struct Candidate<'a> {
    pub config: &'a ModelConfig,
    pub declaration: &'a Declaration,
    pub schema: &'a Schema,
    pub settings: &'a Settings,
    pub options: &'a OnnxRuntimeOptions,
    pub environment: &'a Environment,
    /// The plain graph.
    pub path: &'a Path,
}

/// A packed graph that is to serve.
pub struct Chosen {
    pub sessions: Sessions,
    /// Most tokens of a run, as measured.
    pub token_budget: u32,
}

/// Runs of one graph up to a budget of tokens, and the least time that they took.
struct Timed {
    is_packed: bool,
    budget: u32,
    runs: Vec<Vec<ExecuteRequest>>,
    seconds: f64,
}

/// Whether a packed graph is wanted for this model.
pub fn wanted(declaration: &Declaration, options: &OnnxRuntimeOptions) -> Packing {
    declaration.packing.unwrap_or(options.packing)
}

// === impl Candidate ===

impl Candidate<'_> {
    /// The packed graph, if it is to serve. `plain` is an instance of the plain graph; none where its sessions have
    /// accelerators, or settings that may round.
    pub fn choose(&self, plain: Option<OnnxInstance>) -> Result<Option<Chosen>, LoadError> {
        let model = &self.config.name;
        match self.try_choose(plain) {
            Ok(chosen) => Ok(Some(chosen)),
            Err(reason) if wanted(self.declaration, self.options) == Packing::On => Err(LoadError::Config(format!(
                "model '{model}': packing is on, but the graph cannot be served packed: {reason}. Set parameter 'packing' to auto, which \
                 serves the plain graph then"
            ))),
            Err(reason) => {
                tracing::info!(model, reason, "the plain graph serves: texts of a run are padded to the longest");
                Ok(None)
            }
        }
    }

    fn try_choose(&self, plain: Option<OnnxInstance>) -> Result<Chosen, String> {
        let mut plain = self.possible(plain)?;
        let auto = wanted(self.declaration, self.options) == Packing::Auto;
        let kept = self.options.cost_model_cache.as_deref().map(|directory| {
            let circumstances = format!("packing {GROUPS} {:?} {:?} {}", self.settings, self.declaration, ort::info());
            Entry::new(directory, &self.config.name, self.path, &circumstances)
        });
        let known = kept.as_ref().and_then(Entry::read_packing);
        if let Some((rates, _)) = known.filter(|(rates, _)| auto && rates.other <= rates.plain) {
            return Err(slower(rates));
        }
        doing("packing the graph");
        let (sessions, share) = self.sessions()?;
        let mut packed = self.instance(&sessions)?;
        self.compare(&mut plain, &mut packed)?;
        let (rates, token_budget) = match known {
            Some(known) => known,
            None => {
                doing("measuring the packed graph beside the plain one");
                self.rates(&mut plain, &mut packed)?
            }
        };
        if let (None, Some(Err(error))) = (known, kept.map(|entry| entry.write_packing(rates, token_budget))) {
            tracing::warn!(model = self.config.name, %error, "the choice of the packed graph could not be kept");
        }
        if auto && rates.other <= rates.plain {
            return Err(slower(rates));
        }
        tracing::info!(
            model = self.config.name,
            groups = GROUPS,
            share,
            token_budget,
            source = if known.is_some() { "cache" } else { "measured" },
            plain_tokens_per_second = rates.plain.round(),
            packed_tokens_per_second = rates.other.round(),
            "the packed graph serves: texts of different lengths share a run without padding"
        );
        Ok(Chosen { sessions, token_budget })
    }

    /// The plain instance, if the model's configuration lets a packed graph serve.
    fn possible(&self, plain: Option<OnnxInstance>) -> Result<OnnxInstance, String> {
        let settings = self.settings;
        let reason = if settings.wide_only {
            "its one session is wide (layouts: wide)"
        } else if !settings.places.iter().all(|&place| settings.accelerators.at(place).is_empty() && !place.is_gpu()) {
            "an accelerator runs it"
        } else if self.declaration.padding.steps.multiple > 1 {
            "pad_to_multiple_of sets the lengths of runs"
        } else if self.config.inputs.iter().any(|input| input.reshape.is_some()) {
            "an input has a reshape"
        } else if !caches::undeclared(self.config, &self.schema.inputs).is_empty() {
            "the graph has inputs that requests do not have"
        } else {
            return plain.ok_or_else(|| "it has settings that may round (precision_check)".to_owned());
        };
        Err(reason.to_owned())
    }

    /// The sessions of the packed graph, and the share of the weights that it works on without padding.
    fn sessions(&self) -> Result<(Sessions, f64), String> {
        let failed = |error: std::io::Error| format!("{}: {error}", self.path.display());
        let levelled = self.settings.levelled.as_ref();
        let plain = std::fs::read(levelled.map_or(self.path, Levelled::path)).map_err(failed)?;
        let Packed { model, share } = trireme_packing::pack(plain.into(), GROUPS).map_err(|unfit| unfit.to_string())?;
        let write = |path: &Path| std::fs::write(path, &model).map_err(|error| format!("{}: {error}", path.display()));
        let circumstances = format!("packed {GROUPS} {levelled:?} {}", env!("CARGO_PKG_VERSION"));
        let name = &self.config.name;
        let entry = self.options.model_cache.as_deref();
        let entry =
            entry.and_then(|directory| graph_cache::Entry::new(directory, name, self.path, &circumstances).ok());
        let (path, folder): (PathBuf, _) = match entry {
            Some(entry) => (entry.get_or_make(write)?, None),
            None => {
                let folder = TemporaryFolder::new("packed").map_err(|error| error.to_string())?;
                let path = folder.path().join("model.onnx");
                write(&path)?;
                (path, Some(folder))
            }
        };
        // A session may be made now, which reads the file: the graph need not be in memory twice.
        drop(model);
        let settings = Settings { levelled: None, ..self.settings.clone() };
        let mut sessions = Sessions::prepare(name, self.environment, &settings, self.options, &path);
        sessions.keep(folder);
        Ok((sessions, share))
    }

    fn instance(&self, sessions: &Sessions) -> Result<OnnxInstance, String> {
        let session = sessions.make(InstanceDevice::Cpu, self.settings.intra_threads)?;
        let (session, padding) = (InstanceSession::Own(session), Some(self.declaration.padding.clone()));
        let shrinkage = self.settings.arena_shrinkage.clone();
        let mut packed = OnnxInstance::new(self.config, self.schema, session, padding, shrinkage);
        packed.pack(GROUPS);
        Ok(packed)
    }

    /// A request of one row.
    fn request(&self, length: u32) -> Result<ExecuteRequest, String> {
        measure::request(self.config, self.declaration, 1, length)
    }

    /// Compares rows that run alone on the plain graph with the same rows together on the packed one.
    fn compare(&self, plain: &mut OnnxInstance, packed: &mut OnnxInstance) -> Result<(), String> {
        let own = self.declaration.sample_rows.iter().map(|row| row.len() as u32);
        let lengths = own.chain(COMPARED).chain(self.declaration.longest_row);
        let requests = lengths.map(|length| self.request(length)).collect::<Result<Vec<_>, _>>()?;
        let together =
            packed.execute_together(&requests).map_err(|error| format!("it does not run: {}", error.message))?;
        for (request, together) in requests.iter().zip(together) {
            let alone = plain.execute_together(std::slice::from_ref(request)).map_err(|error| error.message)?.remove(0);
            for (plain, packed) in alone.outputs.iter().zip(&together.outputs) {
                if plain.shape() != packed.shape() {
                    let (name, plain, packed) = (plain.name(), plain.shape(), packed.shape());
                    return Err(format!(
                        "output '{name}' of the packed graph has shape {packed}, and of the plain one {plain}"
                    ));
                }
                let difference = probe::difference(plain, packed);
                tracing::debug!(model = self.config.name, output = plain.name(), difference, "packed and plain");
                if difference > SAME {
                    let name = plain.name();
                    return Err(format!(
                        "output '{name}' of a row differs by {difference:.1e} of its length, and {SAME:.0e} is the most"
                    ));
                }
            }
        }
        Ok(())
    }

    /// Tokens per second of texts in the order of arrival: sorted and padded on the plain graph, and as they come on the packed one; and the packed
    /// graph's budget of tokens.
    fn rates(&self, plain: &mut OnnxInstance, packed: &mut OnnxInstance) -> Result<(Rates, u32), String> {
        let mut lengths = TIMED.to_vec();
        while plain.execute_together(&[self.request(lengths.iter().copied().max().unwrap_or(1))?]).is_err() {
            // The model has fewer positions.
            if lengths.iter().all(|&length| length == 1) {
                return Err("rows that it is measured with do not run".to_owned());
            }
            lengths.iter_mut().for_each(|length| *length = length.div_ceil(2));
        }
        let _alone = measure::alone();
        lengths.truncate(self.texts_in_time(plain, lengths[0])?);
        let tokens: u32 = lengths.iter().sum();
        let mut timed = Vec::new();
        for budget in self.budgets(&PACKED_BUDGETS, tokens) {
            let runs = self.runs(&lengths, |lengths| lengths.iter().sum::<u32>() <= budget)?;
            timed.push(Timed { is_packed: true, budget, runs, seconds: f64::INFINITY });
        }
        lengths.sort_unstable();
        for budget in self.budgets(&PLAIN_BUDGETS, tokens) {
            let padded = |lengths: &[u32]| lengths.len() as u32 * lengths.last().copied().unwrap_or(0);
            let runs = self.runs(&lengths, |lengths| padded(lengths) <= budget)?;
            timed.push(Timed { is_packed: false, budget, runs, seconds: f64::INFINITY });
        }
        let began = Instant::now();
        for round in 0..ROUNDS {
            for own in &mut timed {
                if round > 0 && began.elapsed() > TIME_LIMIT {
                    break;
                }
                let instance = if own.is_packed { &mut *packed } else { &mut *plain };
                let began = Instant::now();
                for run in &own.runs {
                    instance.execute_together(run).map_err(|error| error.message)?;
                }
                own.seconds = own.seconds.min(began.elapsed().as_secs_f64());
            }
        }
        for Timed { is_packed, budget, runs, seconds } in &timed {
            tracing::debug!(model = self.config.name, is_packed, budget, runs = runs.len(), seconds, "timed");
        }
        let of = |is_packed: bool| timed.iter().filter(move |own| own.is_packed == is_packed);
        let [plain, other] = [false, true].map(|is_packed| {
            let least = of(is_packed).map(|own| own.seconds).fold(f64::INFINITY, f64::min);
            f64::from(tokens) / least.max(1e-9)
        });
        let is_near = |own: &&Timed| f64::from(tokens) / own.seconds.max(1e-9) >= NEARLY * other;
        let budget = of(true).find(is_near).map_or(TOKEN_BUDGET, |own| own.budget);
        Ok((Rates { plain, other }, budget))
    }

    /// How many texts are timed, so that a round takes about as long as it may, by the time of one row of this length.
    fn texts_in_time(&self, plain: &mut OnnxInstance, length: u32) -> Result<usize, String> {
        let row = [self.request(length)?];
        let began = Instant::now();
        plain.execute_together(&row).map_err(|error| error.message)?;
        let rounds = TIME_LIMIT.as_secs_f64() / began.elapsed().as_secs_f64().max(1e-9);
        let texts = rounds / (PACKED_BUDGETS.len() + PLAIN_BUDGETS.len()) as f64;
        Ok((texts as usize).clamp(FEWEST_TEXTS, TIMED.len()))
    }

    /// The budgets to time with so many tokens: the configured one, or these up to the first that takes all.
    fn budgets(&self, budgets: &[u32], tokens: u32) -> Vec<u32> {
        let all = budgets.iter().position(|&budget| budget >= tokens).map_or(budgets.len(), |at| at + 1);
        self.declaration.token_budget.map_or_else(|| budgets[..all].to_vec(), |budget| vec![budget])
    }

    /// Rows of these lengths in runs that `fit`.
    fn runs(&self, lengths: &[u32], fit: impl Fn(&[u32]) -> bool) -> Result<Vec<Vec<ExecuteRequest>>, String> {
        let (mut runs, mut begin) = (Vec::new(), 0);
        for end in 1..=lengths.len() {
            let is_full = end == lengths.len()
                || !fit(&lengths[begin..=end])
                || end + 1 - begin > self.declaration.max_rows as usize;
            if is_full {
                runs.push(lengths[begin..end].iter().map(|&length| self.request(length)).collect::<Result<_, _>>()?);
                begin = end;
            }
        }
        Ok(runs)
    }
}

fn slower(rates: Rates) -> String {
    let (plain, packed) = (rates.plain.round(), rates.other.round());
    format!("the packed graph does {packed} tokens per second, and the plain one {plain}")
}
