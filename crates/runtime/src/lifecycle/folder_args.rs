//! Flags about model folders whose files leave something open or contradict one another.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use trireme_model_repository::{FolderChoices, Precision};

/// Flags about model folders. A value is for all of them, or, behind a name and a colon, for the model of that name.
#[derive(Args, Clone, Debug, Default)]
#[command(next_help_heading = "Models")]
pub struct FolderArgs {
    /// Which ONNX file of model folders is served: the most exact one, or one with weights of 16 or 8 bits; `trireme optimize` makes
    /// one of 8 bits
    #[arg(long, env = "TRIREME_PRECISION", value_name = "PRECISION", default_value = "exact", value_parser = precision_parser())]
    pub precision: Precision,

    /// The ONNX file of a model folder that is served, by its path within the folder or its name
    #[arg(long, env = "TRIREME_GRAPH", value_name = "[NAME:]FILE", value_delimiter = ',')]
    pub graph: Vec<String>,

    /// The output of a model folder's graph that the answer is made of, by its name: of a graph with several outputs, the vectors
    #[arg(long, env = "TRIREME_OUTPUT", value_name = "[NAME:]OUTPUT", value_delimiter = ',')]
    pub output: Vec<String>,

    /// The task of a model folder whose files leave it open or say another one: embed, sparse, multi_vector, rerank, classify,
    /// token_classify or generate
    #[arg(long, env = "TRIREME_TASK", value_name = "[NAME:]TASK", value_delimiter = ',')]
    pub task: Vec<String>,

    /// How a model folder's vectors of tokens become one: mean, cls, max, last, weighted_mean or mean_sqrt_len
    #[arg(long, env = "TRIREME_POOLING", value_name = "[NAME:]MODE", value_delimiter = ',')]
    pub pooling: Vec<String>,

    /// Whether a model folder's vectors get the length 1: true or false
    #[arg(long, env = "TRIREME_NORMALIZE", value_name = "[NAME:]BOOL", value_delimiter = ',')]
    pub normalize: Vec<String>,

    /// The side on which a model folder's shorter rows are filled up: left or right
    #[arg(long, env = "TRIREME_PADDING_SIDE", value_name = "[NAME:]SIDE", value_delimiter = ',')]
    pub padding_side: Vec<String>,

    /// How a model folder's texts are read that are longer than its longest row: cut, or windows, which are folded to one vector or score. Entities
    /// are read in windows without it, and other texts cut
    #[arg(long, env = "TRIREME_LONG_TEXTS", value_name = "[NAME:]WHAT", value_delimiter = ',')]
    pub long_texts: Vec<String>,

    /// The provider that runs a model folder's graph. With auto it is the fastest of the installed providers whose outputs are those of the plain one,
    /// by a measurement at the first load. With none it is the plain one. Or it is a provider by its name: openvino
    #[arg(long, env = "TRIREME_ACCELERATOR", value_name = "[NAME:]ACCELERATOR", value_delimiter = ',')]
    pub accelerator: Vec<String>,

    /// A contradiction in a model folder's files that is accepted, by the name that its error has
    #[arg(long, env = "TRIREME_ACCEPT", value_name = "[NAME:]CONTRADICTION", value_delimiter = ',')]
    pub accept: Vec<String>,

    /// Refuses a model folder of which something has to be guessed that can change answers. Without it each start warns of guesses;
    /// `trireme validate` always refuses them
    #[arg(long, env = "TRIREME_STRICT")]
    pub strict: bool,

    /// A further name by which clients may ask for a model folder's model, as text-embedding-3-small. A model of the Hugging Face hub has the
    /// hub's name, org/name, by itself
    #[arg(long, env = "TRIREME_SERVED_NAME", value_name = "[NAME:]NAME", value_delimiter = ',')]
    pub served_name: Vec<String>,
}

/// Reads the name of a precision.
fn precision_parser() -> impl TypedValueParser<Value = Precision> {
    PossibleValuesParser::new(Precision::ALL.map(Precision::name))
        .try_map(|name| Precision::named(&name).ok_or("there is no such precision"))
}

// === impl FolderArgs ===

impl FolderArgs {
    /// The choices; the error names the flag and its values.
    pub fn choices(&self) -> anyhow::Result<FolderChoices> {
        let mut choices = FolderChoices::from(self.precision);
        for (flag, values) in self.clone().lists() {
            choices.add(flag, values).map_err(anyhow::Error::msg)?;
        }
        if self.strict {
            choices.refuse_guesses();
        }
        Ok(choices)
    }

    /// The flags whose values may be for one model alone.
    fn lists(&mut self) -> [(&'static str, &mut Vec<String>); 10] {
        [
            ("graph", &mut self.graph),
            ("output", &mut self.output),
            ("task", &mut self.task),
            ("pooling", &mut self.pooling),
            ("normalize", &mut self.normalize),
            ("padding-side", &mut self.padding_side),
            ("long-texts", &mut self.long_texts),
            ("accelerator", &mut self.accelerator),
            ("accept", &mut self.accept),
            ("served-name", &mut self.served_name),
        ]
    }

    /// These without the values for models of other names.
    pub fn of(&self, name: &str) -> FolderArgs {
        let mut own = self.clone();
        for (_, values) in own.lists() {
            values.retain(|value| value.split_once(':').is_none_or(|(of, _)| of == name));
        }
        own
    }

    /// The same as words of a command line.
    pub fn words(&self) -> Vec<String> {
        let mut words = vec![format!("--precision={}", self.precision.name())];
        for (flag, values) in self.clone().lists() {
            words.extend(values.iter().map(|value| format!("--{flag}={value}")));
        }
        words.extend(self.strict.then(|| "--strict".to_owned()));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_for_other_models_are_left_out() {
        let mut args = FolderArgs::default();
        for (_, values) in args.lists() {
            *values = ["a:one", "b:two", "three"].map(str::to_owned).into();
        }
        for (flag, values) in args.of("a").lists() {
            assert_eq!(*values, ["a:one", "three"], "--{flag}");
        }
    }
}
