//! Flags about a model folder, for settings that its files leave open or contradict one another about.

use super::precision::Precision;
use crate::task::Task;

/// The pooling modes by the names that people and libraries give them, each with the argument of op `pool`.
const POOLING: [(&str, &str); 9] = [
    ("cls", "cls"),
    ("max", "max"),
    ("mean", "mean"),
    ("mean_sqrt_len", "mean_sqrt_len"),
    ("mean_sqrt_len_tokens", "mean_sqrt_len"),
    ("weighted_mean", "weighted_mean"),
    ("weightedmean", "weighted_mean"),
    ("last", "last"),
    ("lasttoken", "last"),
];

/// The choices for one model folder. The default leaves all to its files.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choices {
    /// `--precision`: which of several ONNX files of one graph is served.
    pub precision: Precision,
    /// `--graph`: the ONNX file, by its path within the folder or its name.
    pub graph: Option<String>,
    /// `--output`: the output of the graph that the answer is made of.
    pub output: Option<String>,
    /// `--task`
    pub task: Option<Task>,
    /// `--pooling`: the argument of op `pool`.
    pub pooling: Option<&'static str>,
    /// `--normalize`
    pub normalize: Option<bool>,
    /// `--padding-side`
    pub padding_side: Option<PaddingSide>,
    /// `--long-texts`
    pub long_texts: Option<LongTexts>,
    /// `--strict`: a guess that can change answers is a fault.
    pub strict: bool,
    /// `--accept`: contradictions that are no faults, by the names that their messages have.
    pub accept: Vec<String>,
    /// `--accelerator`
    pub accelerator: Accelerator,
    /// `--served-name`: further names by which clients may ask for the model, as that of the hub.
    pub served_names: Vec<String>,
}

/// The accelerator that runs a model folder's graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Accelerator {
    /// The fastest of the installed providers whose outputs are those of the plain one, by a measurement at the first load.
    #[default]
    Auto,
    /// The plain provider.
    None,
    /// OpenVINO on the CPU.
    OpenVino,
}

/// The side on which shorter rows are filled up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "left and right need no words")]
pub enum PaddingSide {
    Left,
    Right,
}

/// The treatment of texts that are longer than the longest row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongTexts {
    /// They are cut.
    Cut,
    /// They have several rows, of which one is made.
    Windows,
}

/// The choices of a command line, each for all model folders or for one by its name.
#[derive(Clone, Debug, Default)]
pub struct FolderChoices {
    precision: Precision,
    strict: bool,
    /// In the order given: the name of a model, the flag, the value.
    given: Vec<(Option<String>, &'static str, String)>,
}

// === impl Accelerator ===

impl Accelerator {
    /// The word for it in flags and configurations.
    pub fn name(self) -> &'static str {
        match self {
            Accelerator::Auto => "auto",
            Accelerator::None => "none",
            Accelerator::OpenVino => "openvino",
        }
    }

    /// The accelerator of this name.
    fn named(name: &str) -> Option<Accelerator> {
        [Accelerator::Auto, Accelerator::None, Accelerator::OpenVino].into_iter().find(|one| one.name() == name)
    }
}

// === impl PaddingSide ===

impl PaddingSide {
    /// The word for it in flags and files.
    pub fn name(self) -> &'static str {
        match self {
            PaddingSide::Left => "left",
            PaddingSide::Right => "right",
        }
    }

    /// The side of this name.
    pub(crate) fn named(name: &str) -> Option<PaddingSide> {
        [PaddingSide::Left, PaddingSide::Right].into_iter().find(|side| side.name() == name)
    }
}

// === impl LongTexts ===

impl LongTexts {
    /// The word for it in flags and files.
    pub fn name(self) -> &'static str {
        match self {
            LongTexts::Cut => "cut",
            LongTexts::Windows => "windows",
        }
    }

    /// The one of this name.
    fn named(name: &str) -> Option<LongTexts> {
        [LongTexts::Cut, LongTexts::Windows].into_iter().find(|one| one.name() == name)
    }
}

// === impl Choices ===

impl From<Precision> for Choices {
    fn from(precision: Precision) -> Choices {
        Choices { precision, ..Choices::default() }
    }
}

impl Choices {
    /// Sets what a flag says; the error is the expected form.
    fn set(&mut self, flag: &str, value: &str) -> Result<(), String> {
        let expected = |expected: &str| Err(format!("--{flag}: found '{value}', expected {expected}"));
        match flag {
            "graph" if value.is_empty() => return expected("the path of an ONNX file within the folder"),
            "graph" => self.graph = Some(value.to_owned()),
            "output" if value.is_empty() => return expected("the name of an output of the graph"),
            "output" => self.output = Some(value.to_owned()),
            "task" => match Task::named(value) {
                Some(Task::ZeroShot) => {
                    return expected("classify: a model with a label 'entailment' does zero_shot beside it");
                }
                Some(Task::Extract) => {
                    return expected("token_classify: a folder of GLiNER2 does extract beside it");
                }
                Some(task) => self.task = Some(task),
                None => return expected(&format!("one of {}", Task::ALL.map(Task::name).join(", "))),
            },
            "pooling" => match POOLING.iter().find(|(name, _)| *name == value) {
                Some((_, mode)) => self.pooling = Some(mode),
                None => return expected("one of cls, max, mean, mean_sqrt_len, weighted_mean and last"),
            },
            "normalize" => match value.parse() {
                Ok(flag) => self.normalize = Some(flag),
                Err(_) => return expected("true or false"),
            },
            "padding-side" => match PaddingSide::named(value) {
                Some(side) => self.padding_side = Some(side),
                None => return expected("left or right"),
            },
            "long-texts" => match LongTexts::named(value) {
                Some(long_texts) => self.long_texts = Some(long_texts),
                None => return expected("cut or windows"),
            },
            "accelerator" => match Accelerator::named(value) {
                Some(accelerator) => self.accelerator = accelerator,
                None => return expected("auto, none or openvino"),
            },
            "served-name" if value.is_empty() || value.contains([',', ' ']) => {
                return expected("a name without commas and blanks");
            }
            "served-name" => self.served_names.push(value.to_owned()),
            _ => self.accept.push(value.to_owned()),
        }
        Ok(())
    }
}

// === impl FolderChoices ===

impl From<Precision> for FolderChoices {
    fn from(precision: Precision) -> FolderChoices {
        FolderChoices { precision, ..FolderChoices::default() }
    }
}

impl FolderChoices {
    /// A guess that can change answers is a fault of its folder.
    pub fn refuse_guesses(&mut self) {
        self.strict = true;
    }

    /// Adds the values of a flag (`graph`, `output`, `task`, `pooling`, `normalize`, `padding-side`, `long-texts`, `accelerator`, `accept`, `served-name`). A value
    /// that begins with a name and a colon (`small:mean`) counts only for the model of that name. The error names the expected values.
    pub fn add(&mut self, flag: &'static str, values: &[String]) -> Result<(), String> {
        for value in values {
            let (name, value) = match value.split_once(':') {
                Some((name, value)) => (Some(name.to_owned()), value),
                None => (None, value.as_str()),
            };
            Choices::default().set(flag, value)?;
            self.given.push((name, flag, value.to_owned()));
        }
        Ok(())
    }

    /// The first choice for a model whose name is not among these: its flag and value.
    pub(crate) fn for_none_of(&self, names: &[&str]) -> Option<(&'static str, String)> {
        let is_other = |name: &str| !names.contains(&name);
        let (name, flag, value) = self.given.iter().find(|(name, ..)| name.as_deref().is_some_and(is_other))?;
        Some((flag, format!("{}:{value}", name.as_deref().unwrap_or_default())))
    }

    /// The choices for the model `name`. A choice for it comes before one for all.
    pub fn of(&self, name: &str) -> Choices {
        let mut choices = Choices { strict: self.strict, ..Choices::from(self.precision) };
        for own in [false, true] {
            let given =
                self.given.iter().filter(|(of, ..)| of.is_some() == own && of.as_deref().unwrap_or(name) == name);
            for (_, flag, value) in given {
                choices.set(flag, value).expect("the values were checked when they were added");
            }
        }
        choices
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_for_one_model_comes_before_one_for_all() {
        let mut all = FolderChoices::from(Precision::Int8);
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        all.add("pooling", &words(&["small:lasttoken", "cls"])).unwrap();
        all.add("accept", &words(&["label2id", "small:add_eos_token"])).unwrap();
        all.add("task", &words(&["other:classify"])).unwrap();
        let small = all.of("small");
        assert_eq!((small.pooling, small.precision, small.task), (Some("last"), Precision::Int8, None));
        assert_eq!(small.accept, ["label2id", "add_eos_token"]);
        assert_eq!((all.of("other").pooling, all.of("other").task), (Some("cls"), Some(Task::Classify)));
        assert_eq!(all.of("other").accept, ["label2id"]);
    }

    #[test]
    fn a_value_that_is_none_says_what_is_expected() {
        let add = |flag, value: &str| FolderChoices::default().add(flag, &[value.to_owned()]).unwrap_err();
        assert_eq!(
            add("pooling", "median"),
            "--pooling: found 'median', expected one of cls, max, mean, mean_sqrt_len, weighted_mean and last"
        );
        assert!(add("task", "m:embedding").contains("found 'embedding', expected one of embed, sparse"));
        assert_eq!(add("padding-side", "up"), "--padding-side: found 'up', expected left or right");
        assert!(add("served-name", "a b").ends_with("expected a name without commas and blanks"));
        assert_eq!(add("long-texts", "fold"), "--long-texts: found 'fold', expected cut or windows");
        assert_eq!(add("accelerator", "gpu"), "--accelerator: found 'gpu', expected auto, none or openvino");
        assert_eq!(add("normalize", "yes"), "--normalize: found 'yes', expected true or false");
    }
}
