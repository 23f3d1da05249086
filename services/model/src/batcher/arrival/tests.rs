use super::*;

const PADDED: &str = "backend: 'onnxruntime' max_batch_size: 8 input [{ name: 'x' data_type: TYPE_INT64 dims: [-1] }]
     output [{ name: 'y' data_type: TYPE_FP32 dims: [1] }]
     parameters { key: 'pad_inputs' value { string_value: 'x:0' } }";

fn batcher(more: &str) -> PackedBatcher {
    let config = ModelConfig::parse(&format!("{PADDED} {more}"), "m").unwrap();
    PackedBatcher::new(&config, &Declaration::parse(&config).unwrap().unwrap(), 384)
}

fn waiting(batcher: &PackedBatcher, arrived: Instant, requests: &[(u32, u32, u32)]) -> Vec<Candidate> {
    let candidate = |&(priority, rows, length): &(u32, u32, u32)| {
        let (rows, length) = (i64::from(rows), i64::from(length));
        let input = Tensor::from_values("x", [rows, length], vec![1i64; (rows * length) as usize]).unwrap();
        Candidate { arrived, priority, description: batcher.describe(&[input]) }
    };
    requests.iter().map(candidate).collect()
}

#[test]
fn a_run_is_what_came_first_up_to_the_budget() {
    let (batcher, now) = (batcher("parameters { key: 'token_budget' value { string_value: '100' } }"), Instant::now());
    let decide = |requests: &[(u32, u32, u32)]| batcher.decide(&waiting(&batcher, now, requests), now);
    assert_eq!(decide(&[]), Decision::Wait);
    assert_eq!(decide(&[(1, 1, 5)]), Decision::Run(vec![0]));
    assert_eq!(decide(&[(1, 1, 40), (1, 1, 3), (1, 1, 57), (1, 1, 1)]), Decision::Run(vec![0, 1, 2]));
    assert_eq!(decide(&[(1, 1, 40), (1, 1, 80), (1, 1, 3)]), Decision::Run(vec![0]), "nothing is overtaken");
    assert_eq!(decide(&[(1, 3, 400), (1, 1, 1)]), Decision::Run(vec![0]), "a request is never split");
    assert_eq!(decide(&[(1, 5, 4), (1, 4, 4)]), Decision::Run(vec![0]), "rows of a run");
    assert_eq!(decide(&[(1, 1, 40), (0, 1, 5), (0, 1, 7)]), Decision::Run(vec![1, 2]), "a higher level first");
    assert_eq!(decide(&[(1, 1, 4), (1, 0, 4), (1, 1, 4)]), Decision::Run(vec![0]), "one of another kind");
}

#[test]
fn a_delay_gathers_requests() {
    let delayed = batcher("dynamic_batching { max_queue_delay_microseconds: 1000 preferred_batch_size: [3] }");
    let (now, delay) = (Instant::now(), Duration::from_millis(1));
    let two = waiting(&delayed, now, &[(1, 1, 4), (1, 1, 9)]);
    assert_eq!(delayed.decide(&two, now), Decision::WaitUntil(now + delay));
    assert_eq!(delayed.decide(&two, now + delay), Decision::Run(vec![0, 1]));
    let three = waiting(&delayed, now, &[(1, 1, 4), (1, 1, 9), (1, 1, 2)]);
    assert_eq!(delayed.decide(&three, now), Decision::Run(vec![0, 1, 2]));
}
