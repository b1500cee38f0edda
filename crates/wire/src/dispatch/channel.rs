//! The channel on which schedulers lease and dispatch.

use hypha_engine::{FromWorker, Outcome, ToWorker};
use hypha_model::NodeRole;

use super::{MAX_MESSAGES, MAX_PAYLOAD_BYTES, Order, Orders, Report, Reports};
use crate::channel::{ChannelProtocol, Frame};

/// What an advert, an offer or a receipt counts for in a frame: as much as a record with all lists full. Few are sent at
/// a time.
const MARKET_MESSAGE_BYTES: usize = 16 << 10;

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct TaskProtocol;

impl ChannelProtocol for TaskProtocol {
    const NAME: &'static str = "/hypha/tasks/1";
    const OPENER: NodeRole = NodeRole::Scheduler;
    const ACCEPTOR: NodeRole = NodeRole::Worker;

    type FromOpener = Orders;
    type FromAcceptor = Reports;
}

impl Frame for Orders {
    type Item = ToWorker;
    const MAX_ITEMS: usize = MAX_MESSAGES;
    const MAX_ITEM_BYTES: usize = MAX_PAYLOAD_BYTES;

    fn bytes_of(item: &ToWorker) -> usize {
        match item {
            ToWorker::Dispatch(dispatch) => dispatch.spec.input.bytes().len(),
            ToWorker::Advertise(_) | ToWorker::ReceiptCountersigned(_) => MARKET_MESSAGE_BYTES,
            _ => 0,
        }
    }

    fn can_wait(item: &ToWorker) -> bool {
        // The worker only keeps the result until it hears this.
        matches!(item, ToWorker::Recorded { .. })
    }

    fn push(&mut self, item: ToWorker) {
        self.orders.push(Order::from(item));
    }

    fn into_items(self) -> Vec<ToWorker> {
        self.orders.into_iter().map(ToWorker::from).collect()
    }
}

impl Frame for Reports {
    type Item = FromWorker;
    const MAX_ITEMS: usize = MAX_MESSAGES;
    const MAX_ITEM_BYTES: usize = MAX_PAYLOAD_BYTES;

    fn bytes_of(item: &FromWorker) -> usize {
        match item {
            FromWorker::Finished { outcome: Outcome::Completed { result, .. }, .. } => {
                result.payload().map_or(0, |payload| payload.bytes().len())
            }
            FromWorker::Output { piece, .. } => piece.bytes().len(),
            FromWorker::Offered(_) | FromWorker::ReceiptIssued(_) => MARKET_MESSAGE_BYTES,
            _ => 0,
        }
    }

    fn push(&mut self, item: FromWorker) {
        self.reports.push(Report::from(item));
    }

    fn into_items(self) -> Vec<FromWorker> {
        self.reports.into_iter().map(FromWorker::from).collect()
    }
}
