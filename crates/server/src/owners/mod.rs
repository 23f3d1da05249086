//! Owners of API keys: how much each may ask for in a minute at all gateways, and have in flight at this one, and whose a request is.
//!
//! Invariant: a check and the admission are one step under the owner's lock, so requests of the same instant do not pass a limit together.
//!
//! Not here: keys (`access`), how much an owner may store (`trireme-jobs`), what an owner has used (the gateway).

mod limits;
mod name;
mod owner;
mod rate;
mod sharing;
mod window;

pub(crate) use limits::Limits;
pub use limits::{OwnerLimits, OwnerRule};
pub use name::{ADMINISTRATOR, LONGEST_NAME, is_owner_name};
pub use owner::{Account, Admitted, LimitReached, Owner, Owners, RateState};
pub use rate::{Amount, Tally};
pub use sharing::Others;
