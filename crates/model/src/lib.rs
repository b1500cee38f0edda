//! The vocabulary of Hypha, as types: ids, time, resources, requirements, workers, tasks, jobs, money.
//!
//! Every other crate of the workspace uses these types. The crate is pure: it reads no clock, no file, no socket and
//! no randomness but the seed that it is given.

pub mod amount;
pub mod capability;
mod decimal;
pub mod executor;
pub mod failure;
pub mod gpu_ids;
pub mod id;
pub mod input_value;
pub mod job;
pub mod job_input;
pub mod ledger;
pub mod map;
pub mod metadata;
pub mod money;
pub mod name;
pub mod node;
pub mod paged_slab;
mod payload;
pub mod preference;
pub mod priority;
pub mod requirement;
pub mod requirement_input;
pub mod resource;
pub mod result;
pub mod rfc3339;
pub mod rng;
pub mod task;
pub mod time;
pub mod training;
pub mod worker;

pub use self::time::{Span, Time};
pub use capability::{CapabilityQuery, Listing};
pub use executor::{Executor, ExecutorClass};
pub use failure::{FailureKind, FailureOrigin, TaskError};
pub use gpu_ids::GpuIds;
pub use id::{
    AdvertId, AttemptId, Epoch, Fence, JobId, LeaseId, OfferId, SchedulerId, TaskId, WorkerId,
};
pub use job::{JobResources, JobSpec, ModelSource, PriceRange};
pub use job_input::{JobInput, ResourcesInput};
pub use ledger::{Fit, Ledger, LedgerError};
pub use map::{Map, Set, ShardedMap};
pub use metadata::{Metadata, MetadataValue};
pub use money::Money;
pub use name::Name;
pub use node::NodeRole;
pub use paged_slab::PagedSlab;
pub use payload::{Digest, Digester, Payload};
pub use preference::{DeadlinePolicy, Maximise};
pub use priority::Priority;
pub use requirement::{Refusal, RefusalKind, Requirement};
pub use requirement_input::RequirementInput;
pub use resource::{Capacity, Device, Usage};
pub use result::{ObjectRef, TaskResult};
pub use rng::Rng;
pub use task::{InputKind, TaskSpec, TaskState};
pub use worker::Worker;
