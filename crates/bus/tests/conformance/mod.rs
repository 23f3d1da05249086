//! Properties that every bus has to have, as a suite: [`run`] panics if a bus breaks one.
//!
//! Each property is one function whose name states it. Each uses queues, gateways and models of its own, so the bus may
//! serve other processes at the same time. Every wait has a limit and names the event it waits for.
//!
//! Not here: cases of a single bus (a broker that dies, malformed messages on the wire). Tests of that bus cover them.

use std::panic::AssertUnwindSafe;

use futures_util::{FutureExt, StreamExt};

mod dead;
mod deliveries;
mod policies;
mod queues;
mod registry;
mod replies;
mod setup;
pub mod states;
mod stores;
mod topics;

pub use setup::Setup;

/// How many properties are checked at a time: most of them wait for a clock, not for the processor.
const AT_A_TIME: usize = 8;

/// Checks every property, several at a time.
///
/// # Panics
/// When the bus breaks properties; the message names them.
pub async fn run(setup: &Setup) {
    macro_rules! properties {
        ($($property:path),* $(,)?) => {
            vec![$((stringify!($property), AssertUnwindSafe($property(setup)).catch_unwind().boxed_local())),*]
        };
    }
    let properties = properties![
        queues::a_message_arrives_whole_at_exactly_one_worker,
        queues::publishing_to_a_queue_that_nobody_declared_says_so,
        queues::a_queue_can_be_declared_again_and_by_many_at_once,
        queues::a_step_published_twice_is_delivered_once,
        queues::a_queue_full_by_count_refuses_until_there_is_room,
        queues::a_queue_full_by_bytes_refuses_until_there_is_room,
        queues::what_was_cancelled_and_taken_back_makes_room,
        queues::one_worker_gets_messages_in_order,
        policies::higher_levels_are_taken_first_and_no_level_is_forgotten,
        policies::the_bulk_lane_comes_with_its_first_message,
        policies::each_level_has_a_limit_of_its_own_that_can_be_changed,
        policies::what_workers_have_is_beside_the_limit,
        policies::what_waits_too_long_can_be_taken_without_room,
        policies::what_was_taken_back_makes_no_other_message_overdue,
        queues::a_worker_takes_no_more_than_it_has_room_for,
        queues::a_worker_that_stops_gets_what_was_sent_to_it,
        queues::waiting_for_work_can_be_cancelled_without_loss,
        queues::many_publishers_and_workers_lose_and_repeat_nothing,
        queues::a_queue_says_how_full_it_is,
        queues::a_large_message_passes_and_can_be_delivered_again,
        deliveries::a_refused_message_comes_again_after_the_delay,
        states::each_row_about_a_message_holds,
        states::each_row_about_a_record_holds,
        stores::the_last_value_of_a_key_is_kept,
        stores::a_watcher_sees_what_is_there_and_then_every_change,
        stores::a_value_lapses,
        stores::a_large_value_passes,
        queues::a_queue_says_which_requests_it_has,
        queues::an_empty_queue_can_be_removed,
        dead::letters_can_be_read_in_order_and_removed,
        deliveries::who_gets_a_message_next_knows_how_often_it_was_begun,
        replies::replies_reach_the_gateway_and_request_they_are_for,
        replies::replies_come_in_sequence_without_repetitions,
        replies::a_reader_that_falls_behind_is_told_so,
        replies::a_place_ends_with_its_deadline,
        replies::a_large_reply_passes,
        replies::a_waiter_that_leaves_leaves_nothing_behind,
        replies::a_reply_that_nobody_waits_for_is_no_error,
        replies::a_cancellation_reaches_every_worker,
        topics::everybody_who_listens_can_answer_a_question,
        topics::a_question_that_nobody_hears_ends_without_answers,
        topics::an_answer_to_an_asker_that_left_is_no_error,
        topics::a_call_goes_to_one_gateway_and_ends_when_nobody_waits,
        registry::a_watcher_sees_what_is_there_and_then_every_change,
    ];
    let checks = properties.into_iter().map(async |(name, check)| (name, check.await));
    let checked: Vec<_> = futures_util::stream::iter(checks).buffer_unordered(AT_A_TIME).collect().await;
    let broken: Vec<_> = checked.iter().filter(|(_, outcome)| outcome.is_err()).map(|(name, _)| name).collect();
    assert!(broken.is_empty(), "the bus breaks {broken:?}");
}
