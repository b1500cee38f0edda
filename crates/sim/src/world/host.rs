//! The host of a machine: its batch, its disk, its clock, and the process that it runs in.

use hypha_machine::{Apply, Batch, Machine, Sealed, Step};
use hypha_model::Time;

use super::World;
use super::faults::CrashPoint;
use super::nodes::Node;
use crate::checkers::Violation;
use crate::disk::FaultDisk;
use crate::network::Clock;

/// What is specific to a role: how its machine is made from what is durable, and how its effects are handled.
/// Everything else (steps, commits, crashes, restarts) is the same for all roles.
pub(crate) trait Role: Machine<Record: Clone> + 'static {
    /// What its records add up to.
    type Image: Apply<Self::Record> + Clone;
    /// What it is made from besides its image.
    type Setup;
    /// How the requester of an event is reached.
    type Requester;

    /// The node at this index.
    fn node(at: usize) -> Node;

    /// All hosts of this role.
    fn hosts(world: &mut World) -> &mut [Host<Self>];

    /// A machine that continues from `image`.
    fn start(
        setup: &Self::Setup,
        image: Self::Image,
        seed: u64,
        now: Time,
        step: &mut Step<Self>,
    ) -> Self;

    /// Handles an effect, which was released by its commit or may be sent at once.
    fn handle(
        world: &mut World,
        at: usize,
        effect: Self::Effect,
        release: Release,
    ) -> Result<(), Violation>;

    /// Sends a reply to its requester.
    fn reply(
        world: &mut World,
        at: usize,
        to: Self::Requester,
        reply: Self::Reply,
        release: Release,
    ) -> Result<(), Violation>;

    /// These records are durable.
    fn persisted(world: &mut World, at: usize, records: &[Self::Record]) -> Result<(), Violation>;

    /// The machine has made a step: checks what must hold now.
    fn stepped(world: &mut World, at: usize) -> Result<(), Violation>;

    /// Its process begins, or has ended.
    fn process_changed(_world: &mut World, _at: usize, _is_up: bool) {}

    /// A machine begins, or has ended with all that was not durable.
    fn machine_changed(world: &mut World, at: usize, is_running: bool);
}

/// When an effect is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// With the commit of everything before it.
    Committed,
    /// Before that: it depends on nothing durable.
    AtOnce,
}

/// See the module documentation.
pub(crate) struct Host<R: Role> {
    pub(crate) setup: R::Setup,
    /// `None` while the process is down, or its disk has failed.
    pub(crate) machine: Option<R>,
    pub(super) batch: Batch<R, R::Requester>,
    /// The batch that is being committed.
    pub(super) in_flight: Option<Sealed<R, R::Requester>>,
    pub(crate) disk: FaultDisk<R::Record, R::Image>,
    /// The clock that machines are stepped with: it never goes back while the process runs.
    pub(crate) clock: Clock,
    /// By how much the system's clock was set since the process began, in microseconds.
    pub(super) clock_set_by: i64,
    pub(super) seed: u64,
    /// Whether the process is up.
    pub(super) is_up: bool,
    /// Which incarnation of the process this is: a connection does not outlive it.
    pub(super) incarnation: u32,
    /// Counts the machines of this host.
    pub(super) machine_generation: u32,
    pub(super) wake_at: Option<Time>,
    pub(super) crash: Option<CrashPoint>,
}

impl<R: Role> Host<R> {
    pub(super) fn new(
        setup: R::Setup,
        image: R::Image,
        is_persistent: bool,
        clock: Clock,
        seed: u64,
    ) -> Self {
        Host {
            setup,
            machine: None,
            batch: Batch::default(),
            in_flight: None,
            disk: FaultDisk::with_persistence(image, is_persistent),
            clock,
            clock_set_by: 0,
            seed,
            is_up: false,
            incarnation: 0,
            machine_generation: 0,
            wake_at: None,
            crash: None,
        }
    }

    /// The records of the machine that are not durable yet.
    pub(crate) fn pending(&self) -> impl Iterator<Item = &R::Record> {
        let in_flight = self.in_flight.iter().flat_map(Sealed::records);
        in_flight.chain(self.batch.records())
    }
}
