//! Parameter `abort_on` of `identity` and `repeat`: an input that kills its worker, so that tests see the effect on its
//! neighbours. Only builds with the feature `abort`, which this project's end-to-end tests ask for, can do so.

use trireme_engine::LoadError;
use trireme_inference::Tensor;
use trireme_model_repository::ModelConfig;

/// The number whose arrival ends the process, if there is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AbortOn(Option<i32>);

// === impl AbortOn ===

impl AbortOn {
    /// The number in the configuration.
    pub fn of(config: &ModelConfig) -> Result<AbortOn, LoadError> {
        let Some(text) = config.parameters.get("abort_on") else { return Ok(AbortOn::default()) };
        if !cfg!(feature = "abort") {
            let model = &config.name;
            return Err(LoadError::Config(format!(
                "model '{model}': parameter 'abort_on' ends the process, which only builds for tests do: leave it out"
            )));
        }
        text.trim().parse().map(|number| AbortOn(Some(number))).map_err(|_| {
            let model = &config.name;
            LoadError::Config(format!("model '{model}': parameter 'abort_on' has to be an INT32, found '{text}'"))
        })
    }

    /// Whether the number is an element of an INT32 input.
    pub fn is_in(self, inputs: &[Tensor]) -> bool {
        let Some(number) = self.0 else { return false };
        inputs.iter().any(|input| input.values::<i32>().is_ok_and(|values| values.contains(&number)))
    }

    /// Ends the process, in builds that can.
    pub fn abort(self) {
        #[cfg(feature = "abort")]
        std::process::abort();
    }
}

#[cfg(all(test, feature = "abort"))]
mod tests {
    use super::*;

    #[test]
    fn the_number_is_found_in_int32_inputs_alone() {
        let config = |text: &str| ModelConfig::parse(text, "m").unwrap();
        let parameter = |value: &str| {
            config(&format!("backend: 'identity' parameters {{ key: 'abort_on' value {{ string_value: '{value}' }} }}"))
        };
        let inputs = [
            Tensor::from_values("a", [2], vec![1i64, 5]).unwrap(),
            Tensor::from_values("b", [2], vec![7i32, 9]).unwrap(),
        ];
        assert!(!AbortOn::of(&config("backend: 'identity'")).unwrap().is_in(&inputs));
        for (value, found) in [("9", true), ("5", false), (" 7 ", true)] {
            assert_eq!(AbortOn::of(&parameter(value)).unwrap().is_in(&inputs), found, "{value}");
        }
        let error = AbortOn::of(&parameter("x")).unwrap_err().to_string();
        assert!(error.contains("parameter 'abort_on' has to be an INT32, found 'x'"), "{error}");
    }
}
