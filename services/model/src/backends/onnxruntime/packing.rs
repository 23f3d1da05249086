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

/// Most tokens of a timed run of the plain graph, padding included.
const PLAIN_BUDGET: u32 = 512;

/// The least time of so many rounds counts. No round begins after the limit.
const ROUNDS: usize = 4;
const TIME_LIMIT: Duration = Duration::from_millis(2500);

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

/// Whether a packed graph is wanted for this model.
pub fn wanted(declaration: &Declaration, options: &OnnxRuntimeOptions) -> Packing {
    declaration.packing.unwrap_or(options.packing)
}

// === impl Candidate ===

impl Candidate<'_> {
    /// The packed graph's sessions, if it is to serve. `plain` is an instance of the plain graph; none where its sessions have
    /// accelerators, or settings that may round.
    pub fn choose(&self, plain: Option<OnnxInstance>) -> Result<Option<Sessions>, LoadError> {
        let model = &self.config.name;
        match self.try_choose(plain) {
            Ok(sessions) => Ok(Some(sessions)),
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

    fn try_choose(&self, plain: Option<OnnxInstance>) -> Result<Sessions, String> {
        let mut plain = self.possible(plain)?;
        let auto = wanted(self.declaration, self.options) == Packing::Auto;
        let kept = self.options.cost_model_cache.as_deref().map(|directory| {
            let circumstances = format!("packing {GROUPS} {:?} {:?} {}", self.settings, self.declaration, ort::info());
            Entry::new(directory, &self.config.name, self.path, &circumstances)
        });
        let known = kept.as_ref().and_then(Entry::read_rates);
        if let Some(rates) = known.filter(|rates| auto && rates.other <= rates.plain) {
            return Err(slower(rates));
        }
        doing("packing the graph");
        let (sessions, share) = self.sessions()?;
        let mut packed = self.instance(&sessions)?;
        self.compare(&mut plain, &mut packed)?;
        let rates = match known {
            Some(rates) => rates,
            None => {
                doing("measuring the packed graph beside the plain one");
                self.rates(&mut plain, &mut packed)?
            }
        };
        if let (None, Some(Err(error))) = (known, kept.map(|entry| entry.write_rates(rates))) {
            tracing::warn!(model = self.config.name, %error, "the choice of the packed graph could not be kept");
        }
        if auto && rates.other <= rates.plain {
            return Err(slower(rates));
        }
        tracing::info!(
            model = self.config.name,
            groups = GROUPS,
            share,
            source = if known.is_some() { "cache" } else { "measured" },
            plain_tokens_per_second = rates.plain.round(),
            packed_tokens_per_second = rates.other.round(),
            "the packed graph serves: texts of different lengths share a run without padding"
        );
        Ok(sessions)
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
        let Packed { model, share } = trireme_packing::pack(std::fs::read(self.path).map_err(failed)?.into(), GROUPS)
            .map_err(|unfit| unfit.to_string())?;
        let write = |path: &Path| std::fs::write(path, &model).map_err(|error| format!("{}: {error}", path.display()));
        let circumstances = format!("packed {GROUPS} {}", env!("CARGO_PKG_VERSION"));
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
        let mut sessions = Sessions::prepare(name, self.environment, self.settings, self.options, &path);
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

    /// Tokens per second of texts in the order of arrival: sorted and padded on the plain graph, and as they come on the packed one.
    fn rates(&self, plain: &mut OnnxInstance, packed: &mut OnnxInstance) -> Result<Rates, String> {
        let mut lengths = TIMED.to_vec();
        while plain.execute_together(&[self.request(lengths.iter().copied().max().unwrap_or(1))?]).is_err() {
            // The model has fewer positions.
            if lengths.iter().all(|&length| length == 1) {
                return Err("rows that it is measured with do not run".to_owned());
            }
            lengths.iter_mut().for_each(|length| *length = length.div_ceil(2));
        }
        let most = self.declaration.token_budget.unwrap_or(TOKEN_BUDGET);
        let as_they_come = self.runs(&lengths, |lengths| lengths.iter().sum::<u32>() <= most)?;
        let tokens: u32 = lengths.iter().sum();
        lengths.sort_unstable();
        let sorted = self.runs(&lengths, |lengths| {
            lengths.len() as u32 * lengths.last().copied().unwrap_or(0)
                <= self.declaration.token_budget.unwrap_or(PLAIN_BUDGET)
        })?;
        let _alone = measure::alone();
        let (began, mut least) = (Instant::now(), [f64::INFINITY; 2]);
        for round in 0..ROUNDS {
            if round > 1 && began.elapsed() > TIME_LIMIT {
                break;
            }
            let turns = [(&mut *plain, &sorted), (&mut *packed, &as_they_come)];
            for ((instance, runs), least) in turns.into_iter().zip(&mut least) {
                let began = Instant::now();
                for run in runs {
                    instance.execute_together(run).map_err(|error| error.message)?;
                }
                *least = least.min(began.elapsed().as_secs_f64());
            }
        }
        let [plain, other] = least.map(|seconds| f64::from(tokens) / seconds.max(1e-9));
        Ok(Rates { plain, other })
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
