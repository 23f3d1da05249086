//! Categories of requests, and the headers that those of some categories have to carry.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use axum::http::HeaderName;

use super::keys::Secret;

/// Kinds of requests, as Triton groups them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs, reason = "each variant is Triton's own word")]
pub enum Category {
    Health,
    Metadata,
    Inference,
    SharedMemory,
    ModelConfig,
    ModelRepository,
    Statistics,
    Trace,
    Logging,
}

/// Categories whose requests have to carry a header.
#[derive(Clone, Debug)]
pub struct Restriction {
    pub(super) categories: BTreeSet<Category>,
    pub(super) header: HeaderName,
    pub(super) value: Secret,
}

// === impl Category ===

impl Category {
    const ALL: [Category; 9] = [
        Category::Health,
        Category::Metadata,
        Category::Inference,
        Category::SharedMemory,
        Category::ModelConfig,
        Category::ModelRepository,
        Category::Statistics,
        Category::Trace,
        Category::Logging,
    ];

    fn name(self) -> &'static str {
        match self {
            Category::Health => "health",
            Category::Metadata => "metadata",
            Category::Inference => "inference",
            Category::SharedMemory => "shared-memory",
            Category::ModelConfig => "model-config",
            Category::ModelRepository => "model-repository",
            Category::Statistics => "statistics",
            Category::Trace => "trace",
            Category::Logging => "logging",
        }
    }
}

impl fmt::Display for Category {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

// === impl Restriction ===

impl FromStr for Restriction {
    type Err = String;

    /// Reads `category,...:header=value`.
    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':').and_then(|(names, rest)| Some((names, rest.split_once('=')?)));
        let Some((names, (header, value))) = parts else {
            return Err("expected CATEGORY,...:HEADER=VALUE".to_owned());
        };
        let categories = names.split(',').map(|name| {
            let found = Category::ALL.into_iter().find(|category| category.name() == name.trim());
            found.ok_or_else(|| {
                let known: Vec<_> = Category::ALL.iter().map(|category| category.name()).collect();
                format!("unknown category '{}', expected one of {}", name.trim(), known.join(", "))
            })
        });
        let header = header.trim().to_ascii_lowercase();
        let header: HeaderName = header.parse().map_err(|_| format!("'{header}' is not the name of a header"))?;
        Ok(Restriction { categories: categories.collect::<Result<_, _>>()?, header, value: value.parse()? })
    }
}
