//! Padding: which inputs of a model may be lengthened, with which value, and which outputs are shortened in return.
//!
//! All padded inputs of a request have the same *length*: that of the first open dimension after the batch. Requests
//! that cannot be padded without changing their meaning (inputs of differing lengths or rows, no inputs) are described
//! by their exact shapes, so they share a batch only with requests of equal shapes.

use std::hash::{DefaultHasher, Hash, Hasher};

use trireme_engine::Description;
use trireme_inference::Tensor;

/// A model's declarations about padding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padding {
    /// Inputs that are padded; never empty.
    pub inputs: Vec<PaddedInput>,
    /// Outputs whose rows are as long as the padded inputs.
    pub outputs: Vec<UnpaddedOutput>,
    /// The lengths that runs have.
    pub steps: Steps,
}

/// Lengths that runs have: on some providers a token costs less where the length is a multiple of 16, and each new length costs a
/// compilation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Rows are filled up to a multiple of this, at least 1.
    pub multiple: u32,
    /// Not beyond this: the model may have no positions for more. Longer rows keep their length.
    pub longest: u32,
}

/// The lengths of requests that are padded for a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Padded {
    /// The length of each request.
    pub lengths: Vec<u32>,
    /// The length that all have in the run.
    pub to: u32,
}

/// An input that may be lengthened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PaddedInput {
    /// The input's name.
    pub name: String,
    /// The dimension that is padded; the batch dimension is counted. At least 1.
    pub axis: usize,
    /// The padding value: the bytes of one element.
    pub value: Vec<u8>,
    /// Whether the padding goes before the row, not behind it.
    pub left: bool,
}

/// An output that is cut to its request's length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnpaddedOutput {
    /// The output's name.
    pub name: String,
    /// The dimension that is cut; the batch dimension is counted. At least 1.
    pub axis: usize,
    /// Whether the padding is before the row.
    pub left: bool,
}

// === impl Steps ===

impl Default for Steps {
    fn default() -> Steps {
        Steps { multiple: 1, longest: u32::MAX }
    }
}

impl Steps {
    /// The length in a run of rows that are so long.
    pub fn of(self, length: u32) -> u32 {
        let up = length.checked_next_multiple_of(self.multiple.max(1));
        up.filter(|up| *up <= self.longest).unwrap_or(length)
    }
}

// === impl Padding ===

impl Padding {
    /// Describes a request with these inputs. Padded inputs are alike whatever their length.
    pub fn describe(&self, inputs: &[Tensor]) -> Description {
        let exact = Description::exact(inputs);
        let Some(length) = self.length(inputs) else {
            // It runs on its own, but its size still counts against a budget.
            let longest = self.lengths_of(inputs).max().unwrap_or(1);
            return Description { length: longest.clamp(1, u32::MAX.into()) as u32, ..exact };
        };
        let mut hasher = DefaultHasher::new();
        "padded".hash(&mut hasher);
        for input in inputs {
            let padded_axis = self.padded(input).map(|padded| padded.axis);
            (input.name(), input.datatype(), input.shape().len()).hash(&mut hasher);
            for (axis, dimension) in input.shape().iter().enumerate().skip(1) {
                (Some(axis) != padded_axis).then_some(dimension).hash(&mut hasher);
            }
        }
        Description { length, signature: hasher.finish(), ..exact }
    }

    /// The length that all padded inputs share; `None` if the request cannot be padded.
    pub fn length(&self, inputs: &[Tensor]) -> Option<u32> {
        let rows = *inputs.first()?.shape().first()?;
        let same_rows = inputs.iter().all(|input| input.shape().first() == Some(&rows));
        let mut lengths = self.lengths_of(inputs);
        let length = lengths.next().filter(|&length| length > 0 && rows > 0 && same_rows)?;
        lengths.all(|other| other == length).then(|| u32::try_from(length).ok())?
    }

    /// The requests' lengths and that of the run, if they differ, so that inputs have to be padded and outputs cut.
    pub fn lengths(&self, requests: &[&[Tensor]]) -> Option<Padded> {
        let lengths = requests.iter().map(|inputs| self.length(inputs)).collect::<Option<Vec<_>>>()?;
        let to = self.steps.of(*lengths.iter().max()?);
        lengths.iter().any(|length| *length != to).then_some(Padded { lengths, to })
    }

    fn lengths_of(&self, inputs: &[Tensor]) -> impl Iterator<Item = i64> {
        inputs.iter().filter_map(|input| input.shape().get(self.padded(input)?.axis).copied())
    }

    fn padded(&self, input: &Tensor) -> Option<&PaddedInput> {
        self.inputs.iter().find(|padded| padded.name == input.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn padding() -> Padding {
        let input = |name: &str| PaddedInput { name: name.into(), axis: 1, value: vec![0; 8], left: false };
        Padding { inputs: vec![input("ids"), input("mask")], outputs: Vec::new(), steps: Steps::default() }
    }

    fn request(ids: [i64; 2], mask: [i64; 2], other: [i64; 2]) -> [Tensor; 3] {
        [("ids", ids), ("mask", mask), ("other", other)]
            .map(|(name, shape)| Tensor::from_values(name, shape, vec![1i64; (shape[0] * shape[1]) as usize]).unwrap())
    }

    #[test]
    fn length_is_no_part_of_the_signature_but_everything_else_is() {
        let describe = |ids, mask, other| padding().describe(&request(ids, mask, other));
        let short = describe([1, 3], [1, 3], [1, 2]);
        let long = describe([2, 9], [2, 9], [2, 2]);
        assert_eq!((short.rows, short.length, long.rows, long.length), (1, 3, 2, 9));
        assert_eq!(short.signature, long.signature);
        assert_ne!(short.signature, describe([1, 3], [1, 3], [1, 4]).signature, "an input that is not padded");
        let without_mask = padding().describe(&request([1, 3], [1, 3], [1, 2])[..1]);
        assert_ne!(short.signature, without_mask.signature);
    }

    #[test]
    fn what_cannot_be_padded_keeps_to_itself() {
        let good = padding().describe(&request([1, 3], [1, 3], [1, 2]));
        for (ids, mask) in [([1, 3], [1, 1]), ([2, 3], [1, 3]), ([1, 0], [1, 0]), ([0, 3], [0, 3])] {
            let inputs = request(ids, mask, [ids[0], 2]);
            assert_eq!(padding().length(&inputs), None, "{ids:?} {mask:?}");
            let odd = padding().describe(&inputs);
            assert_ne!(odd.signature, good.signature);
            assert_eq!(odd.signature, Description::exact(&inputs).signature);
        }
        assert_eq!(padding().describe(&request([1, 300], [1, 1], [1, 2])).length, 300);
        assert_eq!(padding().describe(&[]), Description::exact(&[]));
    }

    #[test]
    fn equal_lengths_need_no_padding() {
        let with = |length| request([1, length], [1, length], [1, 2]);
        let (three, four) = (with(3), with(4));
        assert_eq!(padding().lengths(&[&three, &four]), Some(Padded { lengths: vec![3, 4], to: 4 }));
        assert_eq!(padding().lengths(&[&three, &three]), None);
        assert_eq!(padding().lengths(&[&three]), None);
        assert_eq!(padding().lengths(&[&three, &request([1, 4], [1, 1], [1, 2])]), None);
    }

    #[test]
    fn runs_have_lengths_in_steps() {
        let steps = Steps { multiple: 16, longest: 64 };
        let of = |length| Steps { multiple: 16, longest: 60 }.of(length);
        assert_eq!([1, 16, 17, 64, 65, u32::MAX].map(|length| steps.of(length)), [16, 16, 32, 64, 65, u32::MAX]);
        assert_eq!(([48, 49].map(of), Steps::default().of(7)), ([48, 49], 7), "there are no positions for 64");
        let stepped = Padding { steps, ..padding() };
        let with = |length| request([1, length], [1, length], [1, 2]);
        assert_eq!(stepped.lengths(&[&with(3)]), Some(Padded { lengths: vec![3], to: 16 }), "a lone request, too");
        assert_eq!(stepped.lengths(&[&with(3), &with(20)]), Some(Padded { lengths: vec![3, 20], to: 32 }));
        assert_eq!(stepped.lengths(&[&with(16)]), None);
    }
}
