//! Splitting a request and joining its parts gives the same rows.

use proptest::prelude::*;
use trireme_inference::DataType;

use super::*;

const NO_LIMIT: usize = usize::MAX;

/// Parts of tensors that are not too many.
fn split(tensors: &[Tensor], max_rows: usize, max_bytes: usize) -> Option<SplitRows> {
    super::split(tensors, max_rows, max_bytes).unwrap()
}

fn tensors(rows: i64) -> Vec<Tensor> {
    let numbers: Vec<f32> = (0..rows * 2).map(|n| n as f32).collect();
    let texts: Vec<String> = (0..rows).map(|n| "x".repeat(n as usize)).collect();
    vec![
        Tensor::from_values("numbers", [rows, 2], numbers).unwrap(),
        Tensor::from_bytes_elements("texts", [rows], &texts).unwrap(),
    ]
}

#[test]
fn what_was_split_is_joined_to_the_same() {
    for rows in 1..20 {
        let whole = tensors(rows);
        for max_rows in 1..=rows as usize + 1 {
            let Some(parts) = split(&whole, max_rows, NO_LIMIT) else {
                assert!(max_rows >= rows as usize, "{rows} rows in parts of {max_rows}");
                continue;
            };
            let tensors = &parts.tensors;
            assert_eq!(tensors.len(), (rows as usize).div_ceil(max_rows));
            assert!(tensors.iter().all(|part| part.iter().all(|t| row_count(t).unwrap() <= max_rows)));
            assert_eq!(join(parts.tensors, &parts.order).unwrap(), whole);
        }
    }
}

#[test]
fn parts_are_no_larger_than_allowed_where_rows_are_not() {
    let whole = tensors(10);
    // A row is 8 bytes of numbers, 4 of length prefix, and as many letters as its number.
    let parts = split(&whole, 100, 30).unwrap();
    let sizes: Vec<usize> = parts.tensors.iter().map(|part| part.iter().map(|t| t.data().len()).sum()).collect();
    assert_eq!(sizes, [21, 20, 19, 18, 17, 16, 29, 25], "one by one, then 3+2, 1+0");
    assert_eq!(join(parts.tensors, &parts.order).unwrap(), whole);
    assert_eq!(split(&whole, 100, 1).unwrap().tensors.len(), 10, "a row is never cut");
}

#[test]
fn rows_that_do_not_agree_are_not_split() {
    let mut tensors = tensors(4);
    tensors.push(Tensor::from_values("scalar", [], vec![1f32]).unwrap());
    assert!(split(&tensors, 1, NO_LIMIT).is_none());
    assert!(split(&[], 1, NO_LIMIT).is_none());
    let nothing = Tensor::from_values::<f32>("none", [0, 4], vec![]).unwrap();
    assert!(split(&[nothing], 1, NO_LIMIT).is_none());
    let empty_rows = Tensor::from_bytes_elements::<&str>("empty", [3, 0], &[]).unwrap();
    let parts = split(std::slice::from_ref(&empty_rows), 1, NO_LIMIT).unwrap();
    assert_eq!(join(parts.tensors, &parts.order).unwrap(), [empty_rows]);
}

/// Each part is a message: rows that have no bytes, or next to none, do not become millions of them.
#[test]
fn what_would_be_too_many_parts_is_refused() {
    let refused = |tensor: Tensor, max_rows, max_bytes| {
        let error = super::split(&[tensor], max_rows, max_bytes).map(|parts| parts.map(|parts| parts.tensors.len()));
        let error = error.unwrap_err();
        assert_eq!(error.code, trireme_inference::ErrorCode::InvalidArg);
        assert!(error.message.contains("more than 16384 messages"), "{error}");
    };
    let rows = 1 << 24;
    let nothing = |datatype| Tensor::new("x", datatype, [rows, 0], Default::default()).unwrap();
    refused(nothing(DataType::Fp32), 1, NO_LIMIT);
    refused(nothing(DataType::Bytes), 1, NO_LIMIT);
    refused(Tensor::from_values("x", [1 << 15, 1], vec![0u8; 1 << 15]).unwrap(), 1, NO_LIMIT);
    refused(Tensor::from_values("x", [1 << 15, 1], vec![0u8; 1 << 15]).unwrap(), 1 << 15, 1);

    let parts = split(&[nothing(DataType::Bytes)], 1 << 20, NO_LIMIT).unwrap();
    assert_eq!(parts.tensors.len(), 16, "rows without bytes cost nothing by themselves");
    assert!(row_starts(&nothing(DataType::Bytes), rows as usize).of(rows as usize) == 0);
}

/// The longest texts are in the first part: the room for all is not that part's times all.
#[test]
fn an_output_has_room_for_what_there_is() {
    let long = "x".repeat(1 << 20);
    let mut texts = vec![""; 1 << 13];
    texts[0] = &long;
    let whole = vec![Tensor::from_bytes_elements("texts", [texts.len() as i64], &texts).unwrap()];
    let parts = split(&whole, 1, NO_LIMIT).unwrap();
    assert_eq!(join(parts.tensors, &parts.order).unwrap(), whole);
}

/// The order of that many rows as they are.
fn as_they_are(rows: usize) -> RowOrder {
    RowOrder { rows, sorted: None, windows: None }
}

#[test]
fn numbers_alone_stay_in_order_and_are_not_copied() {
    let whole = Tensor::from_values("x", [6, 2], (0..12).map(|n| n as f32).collect::<Vec<_>>()).unwrap();
    let parts = split(std::slice::from_ref(&whole), 4, NO_LIMIT).unwrap();
    assert!(parts.order.sorted.is_none());
    assert_eq!(parts.tensors[0][0].data().as_ptr(), whole.data().as_ptr());
}

#[test]
fn outputs_that_do_not_fit_together_are_named() {
    let part =
        |shape: [i64; 2]| vec![Tensor::from_values("y", shape, vec![0f32; (shape[0] * shape[1]) as usize]).unwrap()];
    let error = join(vec![part([2, 3]), part([2, 4])], &as_they_are(4)).unwrap_err().message;
    assert!(
        error.starts_with(
            "output 'y' of a request sent in parts is FP32 of shape [2,3] in part 0 and FP32 of shape [2,4]"
        ),
        "{error}"
    );
    let error = join(vec![part([2, 3]), vec![]], &as_they_are(4)).unwrap_err().message;
    assert_eq!(error, "output 'y' is missing in part 1 of a request sent in parts");
    let error = join(vec![part([2, 3]), part([1, 3])], &as_they_are(4)).unwrap_err().message;
    assert!(error.starts_with("output 'y' of a request of 4 rows sent in parts has 3 rows"), "{error}");
}

proptest! {
    /// Texts of any lengths: each part holds texts of like length, and the answer is in the request's order.
    #[test]
    fn texts_are_cut_by_length_and_come_back_in_order(
        texts in proptest::collection::vec((".{0,12}", ".{0,4}"), 2..60),
        max_rows in 1usize..20,
    ) {
        let rows = texts.len() as i64;
        let (first, second): (Vec<&str>, Vec<&str>) = texts.iter().map(|(a, b)| (a.as_str(), b.as_str())).unzip();
        let whole = vec![
            Tensor::from_values("row", [rows], (0..rows).collect::<Vec<_>>()).unwrap(),
            Tensor::from_bytes_elements("first", [rows, 1], &first).unwrap(),
            Tensor::from_bytes_elements("second", [rows], &second).unwrap(),
        ];
        let Some(parts) = split(&whole, max_rows, NO_LIMIT) else {
            prop_assert!(texts.len() <= max_rows);
            return Ok(());
        };
        let lengths = |part: &Vec<Tensor>| -> Vec<usize> {
            let rows = part[0].values::<i64>().unwrap();
            rows.iter().map(|&row| first[row as usize].len() + second[row as usize].len()).collect()
        };
        let along: Vec<usize> = parts.tensors.iter().flat_map(lengths).collect();
        prop_assert!(along.is_sorted_by(|a, b| a >= b), "the longest first: {:?}", along);
        prop_assert!(parts.tensors.iter().all(|part| part.iter().all(|t| row_count(t).unwrap() <= max_rows)));
        let numbers: Vec<i64> = parts.tensors.iter().flat_map(|part| part[0].values::<i64>().unwrap().into_owned()).collect();
        prop_assert_eq!(parts.order.restore_values(numbers), Some((0..rows).collect()));
        prop_assert_eq!(parts.order.restore_values(vec![0]), None);
        prop_assert_eq!(join(parts.tensors, &parts.order).unwrap(), whole.clone());

        let cut = TextRows::of(&whole).unwrap();
        let single: Vec<_> = (0..cut.len()).map(|row| cut.single(row).unwrap().unwrap()).collect();
        prop_assert_eq!(&join_rows(single).unwrap(), &whole);
        let backwards: Vec<usize> = (0..cut.len()).rev().collect();
        let gathered = cut.gather(&backwards).unwrap();
        let again = TextRows::of(&gathered).unwrap().gather(&backwards).unwrap();
        prop_assert_eq!((again, cut.gather(&[1]).unwrap()), (whole.clone(), cut.single(1).unwrap().unwrap()));
    }
}

/// The answer to texts, whose windows have as many rows as `counts` says: the number of the text in each row, and the windows.
fn of_windows(texts: &Tensor, counts: &[usize]) -> Vec<Tensor> {
    let (mut names, mut windows) = (Vec::new(), Vec::new());
    for (text, name) in texts.bytes_elements().unwrap().enumerate() {
        let number: usize = std::str::from_utf8(name).unwrap().trim().parse().unwrap();
        for window in 0..counts[number] as i64 {
            names.extend([number as f32, window as f32]);
            windows.extend([text as i64, 10 * window, 10 * window + 10, 0, 0, 3]);
        }
    }
    let rows = windows.len() as i64 / 6;
    vec![Tensor::from_values("y", [rows, 2], names).unwrap(), Tensor::from_values("of", [rows, 6], windows).unwrap()]
}

proptest! {
    /// Texts whose answers have a row for each window: those of a text stay together, in the request's order of texts.
    #[test]
    fn windows_come_back_with_the_numbers_of_their_texts(
        texts in proptest::collection::vec((1usize..5, 0usize..9), 2..40),
        max_rows in 1usize..9,
    ) {
        let (counts, blanks): (Vec<usize>, Vec<usize>) = texts.into_iter().unzip();
        let names: Vec<String> = blanks.iter().enumerate().map(|(text, &blanks)| format!("{text}{}", " ".repeat(blanks))).collect();
        let whole = Tensor::from_bytes_elements("texts", [names.len() as i64], &names).unwrap();
        let Some(parts) = split(std::slice::from_ref(&whole), max_rows, NO_LIMIT) else { return Ok(()) };
        let parts = parts.with_windows(Some("of".into()));
        let answers: Vec<_> = parts.tensors.iter().map(|part| of_windows(&part[0], &counts)).collect();
        prop_assert_eq!(join(answers.clone(), &parts.order).unwrap(), of_windows(&whole, &counts));
        let error = join(answers[1..].to_vec(), &parts.order).unwrap_err().message;
        prop_assert!(error.contains("of a request sent in parts has windows of"), "{}", error);
    }
}

#[test]
fn outputs_as_wide_as_their_longest_row_are_filled_up() {
    let order = RowOrder { rows: 3, sorted: None, windows: None };
    let indices = |shape, values| Tensor::from_values::<i64>("sparse_indices", shape, values).unwrap();
    let tokens = |shape, values| Tensor::from_values::<f32>("token_embeddings", shape, values).unwrap();
    let one = vec![indices([1, 3], vec![1, 2, 3]), tokens([1, 1, 2], vec![0.5, 1.5])];
    let two = vec![indices([2, 1], vec![7, 8]), tokens([2, 2, 2], vec![1.0; 8])];
    let joined = join(vec![one, two], &order).unwrap();
    assert_eq!(**joined[0].shape(), [3, 3]);
    assert_eq!(*joined[0].values::<i64>().unwrap(), [1, 2, 3, 7, -1, -1, 8, -1, -1]);
    assert_eq!(**joined[1].shape(), [3, 2, 2]);
    assert_eq!(joined[1].values::<f32>().unwrap()[..4], [0.5, 1.5, 0.0, 0.0]);
}

#[test]
fn one_long_row_does_not_fill_up_many_short_ones_without_limit() {
    let tokens = |rows: i64, width: i64| {
        let values = vec![0f32; (rows * width * 4) as usize];
        vec![Tensor::from_values("token_embeddings", [rows, width, 4], values).unwrap()]
    };
    let order = RowOrder { rows: 1 + (1 << 15), sorted: None, windows: None };
    let error = join(vec![tokens(1, 512), tokens(1 << 15, 1)], &order).unwrap_err();
    assert!(
        error.message.starts_with("tensor 'token_embeddings' of shape [32769,512,4] takes 268443648 bytes"),
        "{error}"
    );
    assert!(join(vec![tokens(1, 8), tokens(1 << 15, 1)], &order).is_ok());
}
