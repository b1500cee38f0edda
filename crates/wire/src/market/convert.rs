//! Conversions between the market's types and those of the wire.

use std::sync::Arc;

use hypha_engine as engine;
use hypha_model::{Epoch, Money, Span};

use super::{Advert, Offer, OfferedRole, Signature, SignedReceipt, WantedRole};
use crate::codec::InvalidField;
use crate::worker::Worker;

impl From<&engine::Advert> for Advert {
    fn from(advert: &engine::Advert) -> Advert {
        let role = |role: &engine::WantedRole| WantedRole {
            name: role.name.clone(),
            requirement: Box::new((*role.requirement).clone()),
            count: role.count,
            minimum: role.minimum,
            wants_all: role.wants_all,
            bid_micros: role.bid.as_micros(),
        };
        Advert {
            id: advert.id,
            roles: advert.roles.iter().map(role).collect(),
            priority: advert.priority,
            is_preemptible: advert.is_preemptible,
            is_replacement: advert.is_replacement,
            waited_us: advert.waited.as_micros(),
            window_us: advert.window.as_micros(),
            offers_wanted: advert.offers_wanted,
            lease_ttl_us: advert.lease_ttl.as_micros(),
        }
    }
}

impl From<Advert> for engine::Advert {
    fn from(advert: Advert) -> engine::Advert {
        let role = |role: WantedRole| engine::WantedRole {
            name: role.name,
            requirement: Arc::from(role.requirement),
            count: role.count,
            minimum: role.minimum,
            wants_all: role.wants_all,
            bid: Money::from_micros(role.bid_micros),
        };
        engine::Advert {
            id: advert.id,
            roles: advert.roles.into_iter().map(role).collect(),
            priority: advert.priority,
            is_preemptible: advert.is_preemptible,
            is_replacement: advert.is_replacement,
            waited: Span::from_micros(advert.waited_us),
            window: Span::from_micros(advert.window_us),
            offers_wanted: advert.offers_wanted,
            lease_ttl: Span::from_micros(advert.lease_ttl_us),
        }
    }
}

impl From<&engine::Offer> for Offer {
    fn from(offer: &engine::Offer) -> Offer {
        let role = |offered: &engine::OfferedRole| OfferedRole {
            role: offered.role,
            price_micros: offered.price.as_micros(),
            portion: offered.portion.clone().into(),
        };
        Offer {
            id: offer.id,
            advert: offer.advert,
            worker_id: offer.worker.id,
            worker: Worker::from_model(&offer.worker),
            epoch: offer.epoch.0,
            roles: offer.roles.iter().map(role).collect(),
            reserved_for_us: offer.reserved_for.as_micros(),
            speed_milli: offer.speed_milli,
            backlog_us: offer.backlog.as_micros(),
            is_relayed: offer.is_relayed,
        }
    }
}

impl TryFrom<Offer> for engine::Offer {
    type Error = InvalidField;

    fn try_from(offer: Offer) -> Result<engine::Offer, InvalidField> {
        let role = |offered: OfferedRole| engine::OfferedRole {
            role: offered.role,
            price: Money::from_micros(offered.price_micros),
            portion: offered.portion.into(),
        };
        Ok(engine::Offer {
            id: offer.id,
            advert: offer.advert,
            worker: Arc::new(offer.worker.to_model(offer.worker_id)?),
            epoch: Epoch(offer.epoch),
            roles: offer.roles.into_iter().map(role).collect(),
            reserved_for: Span::from_micros(offer.reserved_for_us),
            speed_milli: offer.speed_milli,
            backlog: Span::from_micros(offer.backlog_us),
            is_relayed: offer.is_relayed,
        })
    }
}

impl From<&engine::SignedReceipt> for SignedReceipt {
    fn from(signed: &engine::SignedReceipt) -> SignedReceipt {
        let signature =
            |one: &engine::Signature| Signature { key: one.key.clone(), bytes: one.bytes.clone() };
        let receipt = &signed.receipt;
        SignedReceipt {
            lease: receipt.lease,
            worker_id: receipt.worker,
            scheduler_id: receipt.scheduler,
            organisation: receipt.organisation.clone(),
            portion: receipt.portion.clone().into(),
            price_micros: receipt.price.as_micros(),
            held_us: receipt.held.as_micros(),
            number: receipt.number,
            is_final: receipt.is_final,
            worker: signature(&signed.worker),
            scheduler: signed.scheduler.as_ref().map(signature),
        }
    }
}

impl From<SignedReceipt> for engine::SignedReceipt {
    fn from(signed: SignedReceipt) -> engine::SignedReceipt {
        let signature = |one: Signature| engine::Signature { key: one.key, bytes: one.bytes };
        let receipt = engine::Receipt {
            lease: signed.lease,
            worker: signed.worker_id,
            scheduler: signed.scheduler_id,
            organisation: signed.organisation,
            portion: signed.portion.into(),
            price: Money::from_micros(signed.price_micros),
            held: Span::from_micros(signed.held_us),
            number: signed.number,
            is_final: signed.is_final,
        };
        engine::SignedReceipt {
            receipt,
            worker: signature(signed.worker),
            scheduler: signed.scheduler.map(signature),
        }
    }
}
