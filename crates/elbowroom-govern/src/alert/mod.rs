//! What an operator should hear of, and how often.
//!
//! Governors, the doctor's thread, the guard of leases and the check of the whole node all report
//! [`elbowroom_types::alert::Alert`]s. [`Conditions`] turn "it is there now" into beginnings and ends, [`AlertRegistry`] knows what lasts
//! and what ended lately, and an [`Outbox`] per receiver limits the rate.

pub mod conditions;
pub mod outbox;
pub mod overload;
pub mod registry;

pub use conditions::Conditions;
pub use outbox::{NotificationLimit, Outbox};
pub use overload::{OverloadDetector, OverloadSignals};
pub use registry::AlertRegistry;
