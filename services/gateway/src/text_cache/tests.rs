//! Rows that are looked up, computed and joined are those that computing gives.

use proptest::prelude::*;
use trireme_inference::{DataType, Hop, ParameterValue, TextFacts};

use super::*;

const SIZE: u64 = 1 << 20;

fn model() -> ModelKey {
    ModelKey { name: "m".into(), version: 1 }
}

fn texts(texts: &[&str]) -> Vec<Tensor> {
    vec![Tensor::from_bytes_elements("TEXT", [texts.len() as i64, 1], texts).unwrap()]
}

fn facts(text: &str) -> TextFacts {
    TextFacts { tokens: 2 + text.len() as u64, truncated: u64::from(text.len() > 9), windows: 0 }
}

/// A model whose vectors are the length and the first byte of a text, whose tokens are the text's bytes, and whose sparse vectors have an entry
/// for each byte: as wide as the longest text of the request.
fn compute(tensors: &[Tensor]) -> InferResponse {
    let texts: Vec<&str> =
        tensors[0].bytes_elements().unwrap().map(|text| std::str::from_utf8(text).unwrap()).collect();
    let (rows, width) = (texts.len() as i64, texts.iter().map(|text| text.len()).max().unwrap_or(0));
    let filled = |text: &&str, filler: i64| -> Vec<i64> {
        text.bytes().map(i64::from).chain(std::iter::repeat_n(filler, width - text.len())).collect()
    };
    let vectors = texts.iter().flat_map(|text| [text.len() as f32, f32::from(*text.as_bytes().first().unwrap_or(&0))]);
    let indices: Vec<i64> = texts.iter().flat_map(|text| filled(text, -1)).collect();
    let mask: Vec<i64> = texts.iter().flat_map(|text| filled(text, 0)).map(|byte| i64::from(byte > 0)).collect();
    let numbers = |scale: f32| texts.iter().flat_map(|text| filled(text, 0)).map(move |byte| byte as f32 * scale);
    let tokens: Vec<f32> = numbers(0.5).flat_map(|number| [number, 3.0 * number]).collect();
    let width = width as i64;
    let hop = Hop {
        model: "tokens".into(),
        worker: "w".into(),
        compute_infer_us: 7,
        texts: texts.iter().map(|text| facts(text)).reduce(TextFacts::and),
        each_text: TextFacts::told(texts.iter().map(|text| facts(text)).collect()),
        space: Some("0123".into()),
        ..Hop::default()
    };
    InferResponse {
        id: "the first one's".to_owned(),
        model: model(),
        parameters: Parameters::default(),
        outputs: vec![
            Tensor::from_values("embedding", [rows, 2], vectors.collect()).unwrap(),
            Tensor::from_bytes_elements("entities", [rows, 1], &texts).unwrap(),
            Tensor::from_values("sparse_indices", [rows, width], indices).unwrap(),
            Tensor::from_values("sparse_values", [rows, width], numbers(0.25).collect()).unwrap(),
            Tensor::from_values("token_embeddings", [rows, width, 2], tokens).unwrap(),
            Tensor::from_values("token_mask", [rows, width], mask).unwrap(),
        ],
        shared: Default::default(),
        ledger: Ledger(vec![hop, Hop { model: "m".into(), worker: "w".into(), ..Hop::default() }]),
    }
}

fn terms(cache: &TextCache) -> Terms {
    cache.terms(&model(), "origin", &[], &Parameters::default(), &Owner::default(), 0)
}

/// Answers a request as handlers do. Gives the answer and how many texts were computed.
fn answer(cache: &TextCache, tensors: &[Tensor]) -> (InferResponse, usize) {
    let mut lookup = cache.look_up(&terms(cache), tensors).expect("rows");
    let misses = lookup.misses().len();
    let computed = (misses > 0).then(|| compute(&lookup.missing(tensors).unwrap()));
    if let Some(computed) = &computed {
        cache.keep(&terms(cache), &mut lookup, computed);
    }
    (lookup.answer(&model(), computed.as_ref()).expect("rows that fit together"), misses)
}

#[test]
fn only_texts_that_are_not_there_are_computed() {
    let cache = TextCache::new(SIZE, false);
    let first = texts(&["boat", "a", "a longer harbour"]);
    let (cold, computed) = answer(&cache, &first);
    assert_eq!((&cold.outputs, computed), (&compute(&first).outputs, 3));
    assert_eq!((cold.ledger.cached().texts, cold.ledger.0[0].ran()), (0, true));

    let mixed = texts(&["a", "new", "boat", "new", "a longer harbour"]);
    let (warm, computed) = answer(&cache, &mixed);
    let plain = compute(&mixed);
    assert_eq!(
        (&warm.outputs, computed),
        (&plain.outputs, 1),
        "in the request's order, and a text that is there twice is computed once"
    );
    assert_eq!(warm.ledger.texts(), plain.ledger.texts(), "all texts count");
    let tokens = ["a", "boat", "new", "a longer harbour"].iter().map(|text| facts(text).tokens).sum();
    assert_eq!((warm.ledger.cached().texts, warm.ledger.cached().tokens), (4, tokens));

    let (hot, computed) = answer(&cache, &mixed);
    assert_eq!((&hot.outputs, hot.ledger.texts(), computed), (&plain.outputs, plain.ledger.texts(), 0));
    assert_eq!((hot.ledger.cached().texts, hot.ledger.space()), (5, None), "the second step has no space");
    assert!(hot.ledger.0.iter().all(|hop| !hop.ran()), "{:?}", hot.ledger);
    assert_eq!((hot.ledger.0[0].space.as_deref(), &*hot.ledger.0[1].model), (Some("0123"), "m"));
    assert_eq!(cache.lookups(), [(model(), Lookups { hits: 9, misses: 4 })].into());
    assert!(cache.bytes() > 0);
}

#[test]
fn whatever_changes_a_result_is_in_its_key() {
    let cache = TextCache::new(SIZE, false);
    let parameters = |pairs: &[(&str, &str)]| -> Parameters {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), ParameterValue::from(*value))).collect()
    };
    let output = |name: &str, classification| RequestedOutput { name: name.to_owned(), classification };
    let owner = |name: &str| Owner::new(name, 1);
    let (no, none, nobody) = (parameters(&[]), [], Owner::default());
    let key = |terms: &Terms, tensors: &[Tensor]| terms.keys(tensors).expect("rows");
    let of = |model: &ModelKey, origin, outputs: &[_], parameters: &_, owner: &_| {
        key(&cache.terms(model, origin, outputs, parameters, owner, 0), &texts(&["a"]))
    };
    let base = of(&model(), "origin", &none, &no, &nobody);
    assert_eq!(base.len(), 1);
    let later = cache.terms(&model(), "origin", &none, &parameters(&[("trireme_timeout_ms", "5")]), &nobody, 9);
    assert_eq!(key(&later, &texts(&["a"])), base, "how long a client waits changes nothing");
    let other = ModelKey { version: 2, ..model() };
    let mut seen = vec![
        base,
        of(&other, "origin", &none, &no, &nobody),
        of(&model(), "other", &none, &no, &nobody),
        of(&model(), "origin", &[output("o", 0)], &no, &nobody),
        of(&model(), "origin", &[output("o", 1)], &no, &nobody),
        of(&model(), "origin", &none, &parameters(&[("dimensions", "5")]), &nobody),
        of(&model(), "origin", &none, &parameters(&[("dimensions", "6")]), &nobody),
        of(&model(), "origin", &none, &no, &owner("alice")),
        of(&model(), "origin", &none, &no, &owner("bob")),
    ];
    let terms = terms(&cache);
    let tensor = |name: &str, shape: &[i64], texts: &[&str]| Tensor::from_bytes_elements(name, shape, texts).unwrap();
    for tensors in [
        vec![tensor("TEXT", &[1, 1], &["b"])],
        vec![tensor("TEXT", &[1, 1], &[""])],
        vec![tensor("TEXT", &[1], &["a"])],
        vec![tensor("OTHER", &[1, 1], &["a"])],
        vec![tensor("TEXT", &[1, 2], &["a", ""])],
        vec![tensor("TEXT", &[1, 2], &["", "a"])],
        vec![tensor("PAIR", &[1, 1], &[""]), tensor("TEXT", &[1, 1], &["a"])],
        vec![tensor("PAIR", &[1, 1], &["a"]), tensor("TEXT", &[1, 1], &[""])],
        vec![Tensor::new("TEXT", DataType::Uint8, [1, 5], vec![1, 0, 0, 0, b'a'].into()).unwrap()],
    ] {
        seen.push(key(&terms, &tensors));
    }
    for (number, one) in seen.iter().enumerate() {
        assert!(!seen[number + 1..].contains(one), "key {number} is there twice");
    }
    let (one, two) = (tensor("A", &[1, 1], &["x"]), tensor("B", &[1, 1], &["y"]));
    assert_eq!(
        key(&terms, &[one.clone(), two.clone()]),
        key(&terms, &[two, one]),
        "the order of inputs does not count"
    );
}

#[test]
fn owners_share_where_the_deployment_says_so() {
    for (shared, is_same) in [(false, false), (true, true)] {
        let cache = TextCache::new(SIZE, shared);
        let key = |owner: &str| {
            let terms = cache.terms(&model(), "origin", &[], &Parameters::default(), &Owner::new(owner, 1), 0);
            terms.keys(&texts(&["a"]))
        };
        assert_eq!(key("alice") == key("bob"), is_same);
    }
    let flags = |text_cache, text_cache_shared| TextCacheArgs { text_cache, text_cache_shared }.open();
    assert!(flags(None, false).unwrap().is_none() && flags(Some(1), true).unwrap().is_some());
    assert!(flags(None, true).err().unwrap().to_string().starts_with("--text-cache-shared needs a cache"));
}

#[test]
fn an_answer_that_does_not_tell_texts_apart_is_not_kept() {
    let tensors = texts(&["a", "b"]);
    type Change = fn(&mut InferResponse);
    let untold: [(&str, Change); 5] = [
        ("the facts of each text", |answer| answer.ledger.0[0].each_text.clear()),
        ("facts of another number of texts", |answer| answer.ledger.0[0].each_text.truncate(1)),
        ("an output that is not by row", |answer| {
            answer.outputs.push(Tensor::from_values("all", [1], vec![1f32]).unwrap());
        }),
        ("parameters of the whole answer", |answer| {
            answer.parameters.insert("p".to_owned(), ParameterValue::Bool(true));
        }),
        ("an output that is filled up without its mask", |answer| {
            answer.outputs.retain(|output| output.name() != "token_mask");
        }),
    ];
    for (what, change) in untold {
        let cache = TextCache::new(SIZE, false);
        let mut lookup = cache.look_up(&terms(&cache), &tensors).unwrap();
        let mut computed = compute(&tensors);
        change(&mut computed);
        cache.keep(&terms(&cache), &mut lookup, &computed);
        assert!(lookup.answer(&model(), Some(&computed)).is_none(), "{what}");
        assert_eq!(cache.look_up(&terms(&cache), &tensors).unwrap().hits(), 0, "{what}");
    }
}

#[test]
fn results_that_do_not_fit_together_are_not_joined() {
    let cache = TextCache::new(SIZE, false);
    answer(&cache, &texts(&["a"]));
    let tensors = texts(&["a", "b"]);
    let mut lookup = cache.look_up(&terms(&cache), &tensors).unwrap();
    let mut computed = compute(&lookup.missing(&tensors).unwrap());
    computed.outputs[0] = Tensor::from_values("embedding", [1, 3], vec![0f32; 3]).unwrap();
    cache.keep(&terms(&cache), &mut lookup, &computed);
    assert!(lookup.answer(&model(), Some(&computed)).is_none());
    assert!(cache.look_up(&terms(&cache), &[]).is_none(), "no rows at all");
    let uneven = [texts(&["a"]), texts(&["a", "b"])].concat();
    assert!(cache.look_up(&terms(&cache), &uneven).is_none());
}

#[test]
fn a_single_text_and_a_model_without_tokenizer_are_kept() {
    let cache = TextCache::new(SIZE, false);
    let tensors = texts(&["a"]);
    answer(&cache, &tensors);
    assert_eq!(answer(&cache, &tensors).1, 0);
    let cache = TextCache::new(SIZE, false);
    let mut lookup = cache.look_up(&terms(&cache), &tensors).unwrap();
    let mut computed = compute(&tensors);
    computed.ledger = Ledger(vec![Hop { worker: "w".into(), ..Hop::default() }]);
    cache.keep(&terms(&cache), &mut lookup, &computed);
    let (found, misses) = answer(&cache, &tensors);
    assert_eq!((misses, found.ledger.texts(), found.ledger.cached().texts), (0, None, 1));
}

fn any_parameters() -> impl Strategy<Value = Parameters> {
    let value = prop_oneof![
        any::<bool>().prop_map(ParameterValue::Bool),
        (-2i64..3).prop_map(ParameterValue::Int64),
        (0u64..3).prop_map(ParameterValue::Uint64),
        (0..3).prop_map(|number| ParameterValue::Double(f64::from(number))),
        "[ab,:\"]{0,3}".prop_map(ParameterValue::String),
    ];
    proptest::collection::btree_map("[ab:, \"]{1,2}", value, 0..3)
}

proptest! {
    /// Whatever parameter a request has, one with another value of it, or without it, finds nothing.
    #[test]
    fn parameters_that_differ_make_other_keys(one in any_parameters(), two in any_parameters()) {
        let cache = TextCache::new(SIZE, false);
        let key = |parameters| cache.terms(&model(), "origin", &[], parameters, &Owner::default(), 0).keys(&texts(&["a"]));
        prop_assert_eq!(key(&one) == key(&two), one == two);
    }

    /// Any requests one after the other, of few texts, with a cache that has room for some of them only.
    #[test]
    fn answers_are_those_of_computing(
        requests in proptest::collection::vec(proptest::collection::vec("[ab]{0,3}", 1..12), 1..8),
        room in prop_oneof![Just(SIZE), 1_000u64..6_000],
    ) {
        let cache = TextCache::new(room, false);
        for request in &requests {
            let tensors = texts(&request.iter().map(String::as_str).collect::<Vec<_>>());
            let (found, _) = answer(&cache, &tensors);
            let plain = compute(&tensors);
            prop_assert_eq!(&found.outputs, &plain.outputs);
            prop_assert_eq!(found.ledger.texts(), plain.ledger.texts());
        }
        prop_assert!(cache.bytes() <= room);
    }
}
