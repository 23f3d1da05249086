//! Whether the content of a version is served: gateways say, so that workers with different files under one name do not answer in
//! turn.
//!
//! A version asks when it is loaded, and takes no work before a gateway has answered. A version whose content is refused gives
//! back the requests that it has not begun, finishes the others, and says in its registry entry that it has yielded. It asks again until
//! its content is served.
//!
//! Where no gateway listens to such questions, because all of them are gone, the version takes work and
//! goes on asking. Not here: which content is served (the gateway's `registry::contents`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use trireme_bus::{BusError, Connection, Content, ContentQuestion, Verdict};
use trireme_engine::{Backend, IdleCalls, ModelSource};
use trireme_model_repository::{EQUIVALENT_SPACES, RepositoryModel};

use super::Models;
use crate::hosted::HostedModel;
use crate::hosted::standing::Refusal;

/// Pause before a version asks again that has no answer, or whose content is not served.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// The same while only the requests of other workers are waited for.
const ASK_SOON: Duration = Duration::from_millis(200);

/// Time between two looks whether a version has finished its requests.
const TICK: Duration = Duration::from_millis(20);

/// Pause before a delivery that was given back is delivered again.
const AGAIN: Duration = Duration::from_millis(100);

// === impl Models ===

impl Models {
    /// The content of a version. The models of a folder have the folder's, so that they change together. `None` if its files
    /// cannot be read: it is not compared then. Where no other process is on the bus, sizes and times of files say enough. The space of its
    /// answers is read from the weights in any case.
    pub(super) async fn content_of(
        &self,
        model: &RepositoryModel,
        version: i64,
        backend: Arc<dyn Backend>,
    ) -> Option<Content> {
        let (sources, model) = (self.options.sources.clone(), model.clone());
        let (name, is_shared) = (model.name.clone(), self.shared.bus.is_shared());
        let auto_complete = self.options.auto_complete;
        let read = tokio::task::spawn_blocking(move || {
            let folder = sources
                .as_ref()
                .filter(|_| model.uploaded.is_none())
                .and_then(|all| all.folder_of(&model.name, version));
            let space = model.space(version);
            let unknown = |error: &std::io::Error| tracing::warn!(model = model.name, version, %error, "the space of its answers is not known");
            let space = space.inspect_err(unknown).ok().map(String::into_boxed_str);
            let record = folder.as_ref().and_then(|folder| folder.equivalent_spaces.as_ref());
            let equivalences = match (record, &space) {
                (Some(record), Some(space)) => record.of_step(space).unwrap_or_else(|| {
                    tracing::warn!(
                        model = model.name,
                        version,
                        space = &**space,
                        "ignored {EQUIVALENT_SPACES} of its folder: it was measured with another space of this step; measure again by \
                         'trireme verify OTHER THIS --record', or remove the file"
                    );
                    Vec::new()
                }),
                _ => Vec::new(),
            };
            // The files that people have changed; those of a repository that is derived from a folder are as old as the process.
            let files_at = folder.as_ref().map_or_else(|| model.files_at(version), |folder| folder.files_at());
            let files_at = files_at.and_then(|at| Some(at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_secs()));
            let (of, digest) = match folder {
                Some(folder) if !is_shared => (folder.name.clone(), format!("{:016x}", folder.fingerprint())),
                None if !is_shared => (model.name.clone(), format!("{:016x}", model.fingerprint(version))),
                Some(folder) => (folder.name.clone(), folder.digest()?),
                None => {
                    let source = ModelSource {
                        config: model.config_of(version),
                        version,
                        model_path: &model.config_path(version),
                        version_path: &model.version_path(version),
                        auto_complete,
                        uploaded: model.uploaded.as_ref(),
                        calls: IdleCalls::default(),
                    };
                    let surroundings = backend.surroundings(&source).map_err(std::io::Error::other)?;
                    (model.name.clone(), model.digest(version, &surroundings)?)
                }
            };
            Ok(Content { of, digest, space, equivalences, files_at, yields_to: None })
        });
        let found: Result<_, std::io::Error> = read.await.unwrap_or_else(|error| Err(std::io::Error::other(error)));
        match found {
            Ok(content) => Some(content),
            Err(error) => {
                tracing::warn!(model = name, version, %error, "its content cannot be compared with that of other workers");
                None
            }
        }
    }

    /// Follows what gateways say about chosen contents.
    pub async fn follow_choices(self: &Arc<Self>) -> Result<(), BusError> {
        let mut choices = self.shared.bus.chosen_contents().await?;
        let models = Arc::downgrade(self);
        self.shared.tasks.spawn_until_stop("contents", async move {
            while let Some(choice) = choices.recv().await {
                let Some(models) = models.upgrade() else { return };
                for (key, version) in models.versions.lock().iter() {
                    let standing =
                        version.running.as_ref().and_then(|running| running.instances.model.standing.as_ref());
                    let Some(standing) = standing.filter(|standing| standing.content.of == choice.of) else { continue };
                    let is_served = standing.is_served.load(Ordering::Relaxed);
                    if key.version == choice.version && (!is_served || standing.content.digest != choice.digest) {
                        standing.recheck.notify_one();
                    }
                }
            }
        });
        Ok(())
    }

    /// Asks for as long as the version is hosted: at intervals until its content is served, then when a gateway says that another
    /// one is chosen, and when the connection was lost.
    pub(super) async fn look_after_content(self: Arc<Self>, model: Arc<HostedModel>) {
        let Some(standing) = &model.standing else { return };
        let mut connection = self.shared.bus.connection();
        connection.borrow_and_update();
        loop {
            let is_served = standing.is_served.load(Ordering::Relaxed);
            let waits = model.obstacles.lock().content.as_ref().is_some_and(|refusal| refusal.yields_to.is_none());
            let pause = if waits { ASK_SOON } else { ASK_AGAIN };
            tokio::select! {
                () = standing.recheck.notified() => {}
                Ok(()) = connection.changed() => if *connection.borrow_and_update() == Connection::Down { continue },
                () = tokio::time::sleep(pause), if !is_served => {}
            }
            self.follow_verdict(&model).await;
        }
    }

    /// Asks a gateway whether the version's content is served, and acts on the verdict.
    pub(super) async fn follow_verdict(self: &Arc<Self>, model: &Arc<HostedModel>) {
        let Some(standing) = &model.standing else { return };
        let _asking = standing.asking.lock().await;
        let Some((key, since)) = self.announced(model) else { return };
        let question = ContentQuestion { key, since, switch: standing.switch.load(Ordering::Relaxed) };
        let answered = self.shared.bus.ask_verdict(&question).await;
        if let Ok(Some(_)) = answered {
            standing.switch.store(false, Ordering::Relaxed);
        }
        standing.is_served.store(matches!(answered, Ok(Some(Verdict::Serve))), Ordering::Relaxed);
        let before = model.obstacles.lock().content.clone();
        let refusal = match answered {
            Ok(Some(Verdict::Serve)) => None,
            Ok(Some(Verdict::Wait { reason })) => Some(Refusal { reason, yields_to: None }),
            Ok(Some(Verdict::Yield { number, reason })) => Some(Refusal { reason, yields_to: Some(number) }),
            // The verdict of the last gateway holds.
            Ok(None) => before.clone(),
            Err(error) if self.is_pulled(model) || before.is_some() => {
                tracing::debug!(model = %model.key, %error, "no verdict about its content; asking again");
                return;
            }
            Err(error) => Some(Refusal { reason: error.to_string(), yields_to: None }),
        };
        if let Some(Refusal { reason, .. }) = refusal.as_ref().filter(|refusal| Some(*refusal) != before.as_ref()) {
            tracing::warn!(model = %model.key, reason, "takes no work");
        }
        if refusal.is_some() {
            self.park(model).await;
        } else if before.is_some() {
            tracing::info!(model = %model.key, "takes work: its content is served now");
        }
        let serves = refusal.is_none();
        self.change(model, |obstacles| obstacles.content = refusal).await;
        if serves {
            self.unpark(model);
        }
    }

    /// Stops to pull for a version. Returns when this worker has no more requests for the models with its content: until then
    /// these models hand requests over to one another, so that a request has all of its steps with one content.
    async fn park(&self, model: &Arc<HostedModel>) {
        self.stop_pull(model).await;
        while self.in_hand_with(model) > 0 && !self.shared.tasks.stopping().is_cancelled() {
            model.give_back_waiting(AGAIN).await;
            tokio::time::sleep(TICK).await;
        }
        self.shared.forget(model);
    }

    /// The requests in this worker of all versions with the content of this one.
    fn in_hand_with(&self, model: &HostedModel) -> usize {
        // Its steps have spaces of their own.
        let content = |model: &HostedModel| {
            let content = &model.standing.as_ref()?.content;
            Some((content.of.clone(), content.digest.clone()))
        };
        let (own, versions) = (content(model), self.versions.lock());
        let running = versions.values().filter_map(|version| version.running.as_ref());
        let models = running.map(|running| &running.instances.model);
        models
            .filter(|other| content(other) == own && other.key.version == model.key.version)
            .map(|other| other.queue.in_hand())
            .sum()
    }

    /// Stops to pull for a version. Deliveries that were on their way are taken in.
    pub(super) async fn stop_pull(&self, model: &Arc<HostedModel>) {
        let pull = self.versions.lock().get(&model.key).and_then(|version| {
            let running = version.running.as_ref().filter(|running| Arc::ptr_eq(&running.instances.model, model))?;
            Some((running.pull.going.clone(), running.pull.stopped.clone()))
        });
        if let Some((going, stopped)) = pull {
            going.cancel();
            stopped.cancelled().await;
        }
    }

    /// Pulls for a version, unless it does.
    fn unpark(&self, model: &Arc<HostedModel>) {
        let mut versions = self.versions.lock();
        let running = versions.get_mut(&model.key).and_then(|version| version.running.as_mut());
        let Some(running) = running.filter(|running| Arc::ptr_eq(&running.instances.model, model)) else { return };
        if running.pull.stop.is_cancelled() {
            return;
        }
        if running.pull.going.is_cancelled() {
            running.pull = self.start_pull(running.pull.current.clone(), running.pull.stop.clone(), None);
        }
        self.shared.remember(model);
    }

    fn is_pulled(&self, model: &Arc<HostedModel>) -> bool {
        let versions = self.versions.lock();
        let running = versions.get(&model.key).and_then(|version| version.running.as_ref());
        running
            .is_some_and(|running| Arc::ptr_eq(&running.instances.model, model) && !running.pull.going.is_cancelled())
    }
}
