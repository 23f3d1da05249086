//! Weights that torch has saved: `pytorch_model.bin` of an older module, the heads of BGE-M3.
//!
//! Such a file is a ZIP archive: `NAME/data.pkl` is a Python pickle of a dictionary of tensors, `NAME/data/KEY` the numbers of each. A
//! pickle is a program, and loading one in Python may run anything. [`read`] executes nothing: it knows the instructions that build a
//! dictionary of tensors and the names that torch uses for them, and refuses every other one by its name. A crate that reads pickles in
//! general builds objects of any kind, and those that know torch's bring a library of tensors, hence the reader here.
//!
//! Not here: files of torch before 1.6, which are no archives; TorchScript.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::regular;
use crate::stored_zip::StoredZip;

/// The largest pickle of a dictionary of tensors; one of a few layers takes about 1 kB.
const MAX_PICKLE_BYTES: usize = 1 << 20;

/// The largest file of a head or module; that of BGE-M3's vectors takes 2 MB.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// A tensor, row by row.
#[derive(Clone, Debug, PartialEq)]
pub struct TorchTensor {
    /// Its dimensions.
    pub shape: Vec<usize>,
    dtype: Dtype,
    /// Little-endian.
    data: Vec<u8>,
}

/// Names that a pickle of tensors may use.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Name {
    OrderedDict,
    RebuildTensor,
    Storage(Dtype),
}

const NAMES: [(&str, Name); 6] = [
    ("collections.OrderedDict", Name::OrderedDict),
    ("torch._utils._rebuild_tensor_v2", Name::RebuildTensor),
    ("torch.FloatStorage", Name::Storage(Dtype::F32)),
    ("torch.DoubleStorage", Name::Storage(Dtype::F64)),
    ("torch.HalfStorage", Name::Storage(Dtype::F16)),
    ("torch.BFloat16Storage", Name::Storage(Dtype::BF16)),
];

/// A value on the pickle's stack.
#[derive(Clone, Debug)]
enum Value {
    None,
    Bool,
    Int(i64),
    Text(String),
    Tuple(Vec<Value>),
    Dict(Vec<(Value, Value)>),
    Name(Name),
    Storage { dtype: Dtype, key: String, count: usize },
    Tensor(Outline),
}

/// A tensor before its numbers are read.
#[derive(Clone, Debug)]
struct Outline {
    dtype: Dtype,
    key: String,
    /// Elements of the storage.
    count: usize,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

/// The tensors of the file at `path`, by name. The error names the unexpected part of the file.
pub fn read(path: &Path) -> Result<BTreeMap<String, TorchTensor>, String> {
    let size = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if size > MAX_FILE_BYTES {
        return Err(format!("it has {size} bytes, expected at most {MAX_FILE_BYTES}"));
    }
    let bytes = regular::read(path).map_err(|error| error.to_string())?;
    let archive = StoredZip::new(&bytes).map_err(|reason| {
        format!("it is no ZIP archive, as torch has written since 1.6 ({reason}); save it again with torch.save")
    })?;
    let pickle = archive.names().find(|name| name.ends_with("/data.pkl")).ok_or("it holds no data.pkl")?;
    if archive.names().any(|name| name.ends_with("/constants.pkl")) {
        return Err("it is a TorchScript file, expected the weights alone".to_owned());
    }
    let folder = pickle.trim_end_matches("data.pkl");
    if let Some(order) = archive.entry(&format!("{folder}byteorder"))
        && order != b"little"
    {
        return Err(format!("its numbers are in byte order '{}', expected little", String::from_utf8_lossy(order)));
    }
    let pickle = archive.entry(pickle).ok_or("it holds no data.pkl")?;
    if pickle.len() > MAX_PICKLE_BYTES {
        return Err(format!("its data.pkl has {} bytes, expected at most {MAX_PICKLE_BYTES}", pickle.len()));
    }
    let outlines = Machine { bytes: pickle, ..Machine::default() }.run()?;
    let tensor = |(name, outline): (String, Outline)| {
        let storage = archive.entry(&format!("{folder}data/{}", outline.key));
        let tensor = storage.ok_or("its storage is missing".to_owned()).and_then(|storage| outline.fill(storage));
        tensor.map(|tensor| (name.clone(), tensor)).map_err(|reason| format!("tensor '{name}': {reason}"))
    };
    outlines.into_iter().map(tensor).collect()
}

/// The file at `path` as a safetensors file, whose tensors get the names of a module's `linear`, as in a sentence-transformers folder.
pub fn to_safetensors(path: &Path) -> Result<Vec<u8>, String> {
    let tensors = read(path)?;
    let views = tensors.iter().map(|(name, tensor)| {
        let name = if name.contains('.') { name.clone() } else { format!("linear.{name}") };
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.data);
        Ok((name, view.map_err(|error| error.to_string())?))
    });
    let views: Vec<_> = views.collect::<Result<_, String>>()?;
    safetensors::serialize(views, None).map_err(|error| error.to_string())
}

// === impl Outline ===

impl Outline {
    /// The numbers, row by row, of the bytes of the storage.
    fn fill(&self, storage: &[u8]) -> Result<TorchTensor, String> {
        let width = bytes_of(self.dtype);
        if Some(storage.len()) != self.count.checked_mul(width) {
            return Err(format!("its storage has {} bytes, expected {} numbers", storage.len(), self.count));
        }
        let elements = self.shape.iter().try_fold(1usize, |product, &size| product.checked_mul(size));
        let elements = elements.filter(|&elements| elements <= self.count && self.shape.len() == self.strides.len());
        let elements = elements.ok_or_else(|| {
            format!("shape {:?} has more elements than its storage, or not as many axes as strides", self.shape)
        })?;
        let mut data = Vec::with_capacity(elements * width);
        for element in 0..elements {
            // The place along each axis, the last one first.
            let (mut rest, mut place) = (element, Some(self.offset));
            for (&size, &stride) in self.shape.iter().zip(&self.strides).rev() {
                let step = (rest % size).checked_mul(stride);
                place = place.zip(step).and_then(|(place, step)| place.checked_add(step));
                rest /= size;
            }
            let place = place.filter(|&place| place < self.count).ok_or("it reaches beyond its storage")?;
            data.extend_from_slice(&storage[place * width..(place + 1) * width]);
        }
        Ok(TorchTensor { shape: self.shape.clone(), dtype: self.dtype, data })
    }
}

/// The bytes of a number.
fn bytes_of(dtype: Dtype) -> usize {
    match dtype {
        Dtype::F64 => 8,
        Dtype::F16 | Dtype::BF16 => 2,
        _ => 4,
    }
}

/// Executes the pickle's instructions on a stack of values.
#[derive(Default)]
struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    stack: Vec<Value>,
    /// Where the stack stood at each mark.
    marks: Vec<usize>,
    memo: HashMap<usize, Value>,
}

// === impl Machine ===

impl Machine<'_> {
    fn run(mut self) -> Result<Vec<(String, Outline)>, String> {
        loop {
            let [code] = self.take()?;
            match code {
                0x80 => drop(self.take::<1>()?),
                0x95 => drop(self.take::<8>()?),
                b'.' => break,
                b'(' => self.marks.push(self.stack.len()),
                b')' => self.stack.push(Value::Tuple(Vec::new())),
                b'}' => self.stack.push(Value::Dict(Vec::new())),
                b'N' => self.stack.push(Value::None),
                0x88 | 0x89 => self.stack.push(Value::Bool),
                b'K' => {
                    let [number] = self.take()?;
                    self.stack.push(Value::Int(number.into()));
                }
                b'M' => {
                    let number = u16::from_le_bytes(self.take()?);
                    self.stack.push(Value::Int(number.into()));
                }
                b'J' => {
                    let number = i32::from_le_bytes(self.take()?);
                    self.stack.push(Value::Int(number.into()));
                }
                0x8a => self.long()?,
                b'X' => {
                    let length = u32::from_le_bytes(self.take()?) as usize;
                    self.text(length)?;
                }
                0x8c => {
                    let [length] = self.take()?;
                    self.text(length.into())?;
                }
                b'c' => {
                    let name = format!("{}.{}", self.line()?, self.line()?);
                    self.named(&name)?;
                }
                0x93 => match (self.pop()?, self.pop()?) {
                    (Value::Text(name), Value::Text(module)) => self.named(&format!("{module}.{name}"))?,
                    _ => return Err("its pickle names something that is no text".to_owned()),
                },
                b't' => {
                    let values = self.since_mark()?;
                    self.stack.push(Value::Tuple(values));
                }
                0x85..=0x87 => {
                    let at = self.stack.len().checked_sub(usize::from(code - 0x84)).ok_or_else(ended)?;
                    let values = self.stack.split_off(at);
                    self.stack.push(Value::Tuple(values));
                }
                b'q' => {
                    let [place] = self.take()?;
                    self.put(place.into())?;
                }
                b'r' => {
                    let place = u32::from_le_bytes(self.take()?);
                    self.put(place as usize)?;
                }
                0x94 => self.put(self.memo.len())?,
                b'h' => {
                    let [place] = self.take()?;
                    self.get(place.into())?;
                }
                b'j' => {
                    let place = u32::from_le_bytes(self.take()?);
                    self.get(place as usize)?;
                }
                b'Q' => self.storage()?,
                b'R' => self.call()?,
                b's' => {
                    let (value, key) = (self.pop()?, self.pop()?);
                    self.set(vec![key, value])?;
                }
                b'u' => {
                    let values = self.since_mark()?;
                    self.set(values)?;
                }
                // Notes about versions of modules, which torch leaves at its dictionary.
                b'b' => match (self.pop()?, self.stack.last()) {
                    (Value::Dict(_), Some(Value::Dict(_))) => {}
                    _ => return Err("its pickle sets the state of an object, expected tensors only".to_owned()),
                },
                other => return Err(format!("its pickle has instruction 0x{other:02x}, expected tensors only")),
            }
        }
        let Value::Dict(entries) = self.pop()? else {
            return Err("its pickle is no dictionary of tensors".to_owned());
        };
        let tensor = |entry| match entry {
            (Value::Text(name), Value::Tensor(outline)) => Ok((name, outline)),
            _ => Err("its pickle is no dictionary of tensors by name".to_owned()),
        };
        entries.into_iter().map(tensor).collect()
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.bytes.get(self.at..).and_then(|rest| rest.first_chunk::<N>()).ok_or_else(ended)?;
        self.at += N;
        Ok(*bytes)
    }

    fn slice(&mut self, length: usize) -> Result<&[u8], String> {
        let end = self.at.checked_add(length).ok_or_else(ended)?;
        let bytes = self.bytes.get(self.at..end).ok_or_else(ended)?;
        self.at = end;
        Ok(bytes)
    }

    fn line(&mut self) -> Result<String, String> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let length = rest.iter().position(|&byte| byte == b'\n').ok_or_else(ended)?;
        let line = String::from_utf8_lossy(self.slice(length)?).into_owned();
        self.at += 1;
        Ok(line)
    }

    fn text(&mut self, length: usize) -> Result<(), String> {
        let text = std::str::from_utf8(self.slice(length)?).map_err(|error| error.to_string())?.to_owned();
        self.stack.push(Value::Text(text));
        Ok(())
    }

    fn long(&mut self) -> Result<(), String> {
        let [length] = self.take()?;
        let bytes = self.slice(length.into())?;
        let mut number = [0; 8];
        let place = number.get_mut(..bytes.len()).ok_or("its pickle has a number of more than 8 bytes")?;
        place.copy_from_slice(bytes);
        self.stack.push(Value::Int(i64::from_le_bytes(number)));
        Ok(())
    }

    fn pop(&mut self) -> Result<Value, String> {
        self.stack.pop().ok_or_else(ended)
    }

    fn since_mark(&mut self) -> Result<Vec<Value>, String> {
        let mark = self.marks.pop().filter(|&mark| mark <= self.stack.len()).ok_or_else(ended)?;
        Ok(self.stack.split_off(mark))
    }

    /// Only values that stay small are remembered: a pickle may repeat a remembered one any number of times within another.
    fn put(&mut self, place: usize) -> Result<(), String> {
        let value = self.stack.last().ok_or_else(ended)?;
        if matches!(value, Value::Text(_) | Value::Name(_) | Value::Int(_)) {
            self.memo.insert(place, value.clone());
        } else {
            self.memo.insert(place, Value::None);
        }
        Ok(())
    }

    fn get(&mut self, place: usize) -> Result<(), String> {
        match self.memo.get(&place) {
            Some(value @ (Value::Text(_) | Value::Name(_) | Value::Int(_))) => self.stack.push(value.clone()),
            _ => return Err("its pickle uses an object twice, expected tensors only".to_owned()),
        }
        Ok(())
    }

    fn named(&mut self, name: &str) -> Result<(), String> {
        let known = NAMES.iter().find(|(known, _)| *known == name);
        let (_, name) = known.ok_or_else(|| {
            format!("its pickle names {name}, which is not executed; expected tensors of floating point numbers only")
        })?;
        self.stack.push(Value::Name(*name));
        Ok(())
    }

    /// `('storage', torch.FloatStorage, '0', 'cpu', 1024)`
    fn storage(&mut self) -> Result<(), String> {
        let Value::Tuple(parts) = self.pop()? else { return Err("its pickle refers to no storage".to_owned()) };
        match parts.as_slice() {
            [Value::Text(kind), Value::Name(Name::Storage(dtype)), Value::Text(key), _, Value::Int(count)]
                if kind == "storage" && key.bytes().all(|byte| byte.is_ascii_digit()) =>
            {
                let count = usize::try_from(*count).map_err(|_| "a storage has less than no numbers".to_owned())?;
                self.stack.push(Value::Storage { dtype: *dtype, key: key.clone(), count });
                Ok(())
            }
            _ => Err("its pickle refers to something that is no storage of torch".to_owned()),
        }
    }

    fn call(&mut self) -> Result<(), String> {
        let (Value::Tuple(arguments), Value::Name(name)) = (self.pop()?, self.pop()?) else {
            return Err("its pickle calls something that is not known".to_owned());
        };
        let sizes = |value: &Value| match value {
            Value::Tuple(sizes) => sizes
                .iter()
                .map(|size| match size {
                    Value::Int(size) => usize::try_from(*size).ok(),
                    _ => None,
                })
                .collect::<Option<Vec<_>>>(),
            _ => None,
        };
        let value = match (name, arguments.as_slice()) {
            (Name::OrderedDict, []) => Value::Dict(Vec::new()),
            (Name::RebuildTensor, [Value::Storage { dtype, key, count }, Value::Int(offset), shape, strides, ..]) => {
                let (shape, strides) =
                    sizes(shape).zip(sizes(strides)).ok_or("a tensor's shape is no list of sizes")?;
                let offset = usize::try_from(*offset).map_err(|_| "a tensor begins before its storage".to_owned())?;
                Value::Tensor(Outline { dtype: *dtype, key: key.clone(), count: *count, offset, shape, strides })
            }
            _ => return Err(format!("its pickle calls {name:?} with arguments that torch does not give it")),
        };
        self.stack.push(value);
        Ok(())
    }

    /// Adds keys and values, which alternate, to the dictionary on the stack.
    fn set(&mut self, values: Vec<Value>) -> Result<(), String> {
        let Some(Value::Dict(entries)) = self.stack.last_mut() else {
            return Err("its pickle sets an item of something that is no dictionary".to_owned());
        };
        let mut values = values.into_iter();
        while let (Some(key), Some(value)) = (values.next(), values.next()) {
            entries.push((key, value));
        }
        Ok(())
    }
}

fn ended() -> String {
    "its pickle ends too early".to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::stored_zip::tests::zip;

    /// An archive as torch writes it, with this pickle and these storages.
    fn archive(pickle: &[u8], storages: &[&[u8]]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let named = storages.iter().enumerate().map(|(index, bytes)| (format!("x/data/{index}"), *bytes));
        let others = [("x/data.pkl".to_owned(), pickle), ("x/byteorder".to_owned(), &b"little"[..])];
        let entries: Vec<(String, &[u8])> = named.chain(others).collect();
        std::fs::write(file.path(), zip(&entries)).unwrap();
        file
    }

    fn text(text: &str) -> Vec<u8> {
        [&b"X"[..], &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat()
    }

    /// A state dict of one tensor, in the instructions that torch 2 writes for `torch.nn.Linear`.
    fn state(name: &str, storage: &str, count: u8, shape: [u8; 2], strides: [u8; 2]) -> Vec<u8> {
        let pair = |[a, b]: [u8; 2]| vec![b'K', a, b'K', b, 0x86, b'q', 9];
        [
            &b"\x80\x02ccollections\nOrderedDict\nq\x00)Rq\x01("[..],
            &text(name),
            b"q\x02ctorch._utils\n_rebuild_tensor_v2\nq\x03((",
            &text("storage"),
            format!("q\x04ctorch\n{storage}\nq\x05").as_bytes(),
            &text("0"),
            b"q\x06",
            &text("cpu"),
            &[b'q', 7, b'K', count, b't', b'q', 8, b'Q', b'K', 0],
            &pair(shape),
            &pair(strides),
            b"\x89h\x00)Rtq\x0aRq\x0bu}",
            &text("_metadata"),
            b"h\x00)Rsb.",
        ]
        .concat()
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn a_state_dict_is_read_by_its_strides_and_written_as_safetensors() {
        let storage = floats(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        let plain = archive(&state("weight", "FloatStorage", 6, [2, 3], [3, 1]), &[&storage]);
        let tensors = read(plain.path()).unwrap();
        assert_eq!((tensors["weight"].shape.clone(), &tensors["weight"].data), (vec![2, 3], &storage));
        let turned = archive(&state("weight", "FloatStorage", 6, [3, 2], [1, 3]), &[&storage]);
        let turned = &read(turned.path()).unwrap()["weight"];
        assert_eq!(turned.data, floats(&[1.0, 4.0, 2.0, 5.0, 3.0, 6.0]));

        let written = to_safetensors(plain.path()).unwrap();
        let written = safetensors::SafeTensors::deserialize(&written).unwrap();
        let tensor = written.tensor("linear.weight").unwrap();
        assert_eq!((tensor.shape(), tensor.data(), tensor.dtype()), (&[2usize, 3][..], &storage[..], Dtype::F32));
    }

    #[test]
    fn whatever_is_no_tensor_is_refused_by_its_name() {
        let refused = |pickle: &[u8]| read(archive(pickle, &[]).path()).unwrap_err();
        assert!(
            refused(b"\x80\x02cos\nsystem\n(X\x02\x00\x00\x00lstR.").contains("names os.system, which is not executed")
        );
        assert!(refused(b"\x80\x04\x8c\x05posix\x8c\x06system\x93.").contains("names posix.system"));
        assert!(refused(b"\x80\x02]q\x00.").contains("instruction 0x5d"));
        assert!(refused(b"\x80\x02ctorch\nLongStorage\n.").contains("torch.LongStorage"));
        assert!(refused(b"\x80\x02").contains("ends too early"));
        let beyond = state("weight", "HalfStorage", 6, [2, 3], [6, 1]);
        let found = read(archive(&beyond, &[&[0; 12]]).path()).unwrap_err();
        assert_eq!(found, "tensor 'weight': it reaches beyond its storage");
        let short = read(archive(&beyond, &[&[0; 10]]).path()).unwrap_err();
        assert_eq!(short, "tensor 'weight': its storage has 10 bytes, expected 6 numbers");
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.").unwrap();
        assert!(read(file.path()).unwrap_err().contains("no ZIP archive, as torch has written since 1.6"));
    }

    proptest! {
        #[test]
        fn any_pickle_is_read_or_refused(mut pickle in proptest::collection::vec(any::<u8>(), 0..60), at in 0usize..200) {
            let whole = state("weight", "FloatStorage", 6, [2, 3], [3, 1]);
            let _ = Machine { bytes: &pickle, ..Machine::default() }.run();
            let at = at.min(whole.len());
            pickle.splice(0..0, whole[..at].iter().copied());
            let _ = Machine { bytes: &pickle, ..Machine::default() }.run();
        }
    }
}
