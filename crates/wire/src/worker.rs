//! A worker as it describes itself, on the wire.

use hypha_model as model;
use hypha_model::amount::{MAX_BYTES, MAX_MILLI};
use hypha_model::{ExecutorClass, Money, WorkerId};
use serde::{Deserialize, Deserializer, Serialize};

use crate::check::{at_most, name, within};
use crate::codec::InvalidField;
use crate::field::read_list;
use crate::tagged::{self, Tagged};

/// Executors of a worker: each is a program that an operator installed.
pub const MAX_EXECUTORS: usize = 32;
/// Models of one executor: a full model cache; one that serves more lists none, which means any.
pub const MAX_MODELS: usize = 256;
/// GPUs of a worker: four times the largest single machine on the market.
pub const MAX_DEVICES: usize = 64;
/// Tasks at once on one executor; more would be a mistake in a configuration.
pub const MAX_CONCURRENCY: u32 = 10_000;
/// The highest price of an hour, as the model parses prices.
const MAX_PRICE_MICROS: u64 = Money::MAX_WRITTEN_UNITS * 1_000_000;

/// A worker's description of itself. Its id is that of the record's author.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worker {
    /// Its executors.
    #[serde(default, deserialize_with = "read_list::<_, _, MAX_EXECUTORS>")]
    pub executors: Vec<Executor>,
    /// Processor time, in thousandths of a core.
    pub cpu_milli: u64,
    /// Main memory.
    pub memory_bytes: u64,
    /// Disk for work directories and caches.
    #[serde(default)]
    pub storage_bytes: u64,
    /// The GPUs, in the order in which the machine numbers them.
    #[serde(default, deserialize_with = "read_list::<_, _, MAX_DEVICES>")]
    pub devices: Vec<Device>,
    /// Its price per hour, in millionths.
    #[serde(default)]
    pub price_micros: u64,
    /// A label of its location.
    #[serde(default)]
    pub region: Option<String>,
    /// A label that workers of the same hardware share.
    #[serde(default)]
    pub hardware: Option<String>,
}

/// An executor of a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Executor {
    /// The kind of work.
    pub class: Class,
    /// The name that a requirement may name.
    pub name: String,
    /// The models it serves; none means any.
    #[serde(default, deserialize_with = "read_list::<_, _, MAX_MODELS>")]
    pub models: Vec<String>,
    /// How many tasks it runs at once.
    pub concurrency: u32,
}

/// The kind of work that an executor does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// Runs requests to a model.
    Inference,
    /// Runs the inner steps of a training job.
    Train,
    /// Averages the deltas of trainers.
    Aggregate,
    /// A class that only newer peers know; never sent.
    #[serde(skip_serializing)]
    Unknown,
}

/// One GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// The model name.
    pub model: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// How much of it is offered, in thousandths.
    pub milli_gpu: u32,
}

impl Worker {
    /// The wire type of `worker`.
    pub fn from_model(worker: &model::Worker) -> Worker {
        Worker {
            executors: worker.executors.iter().map(Executor::from_model).collect(),
            cpu_milli: worker.capacity.cpu_milli,
            memory_bytes: worker.capacity.memory_bytes,
            storage_bytes: worker.capacity.storage_bytes,
            devices: worker.capacity.devices.iter().map(Device::from_model).collect(),
            price_micros: worker.price.as_micros(),
            region: worker.region.as_ref().map(ToString::to_string),
            hardware: worker.hardware.as_ref().map(ToString::to_string),
        }
    }

    /// The worker as the model's type. An executor of a class that this build does not know is left out:
    /// the rest of the worker is still useful.
    pub fn to_model(&self, id: WorkerId) -> Result<model::Worker, InvalidField> {
        self.validate()?;
        let known = self.executors.iter().filter_map(|executor| executor.to_model().transpose());
        let label = |field, label: &Option<String>| {
            label.as_deref().map(|text| name(field, text)).transpose()
        };
        Ok(model::Worker {
            id,
            capacity: model::Capacity {
                cpu_milli: self.cpu_milli,
                memory_bytes: self.memory_bytes,
                storage_bytes: self.storage_bytes,
                devices: self.devices.iter().map(Device::to_model).collect::<Result<_, _>>()?,
            },
            executors: known.collect::<Result<_, _>>()?,
            hardware: label("hardware", &self.hardware)?,
            region: label("region", &self.region)?,
            price: Money::from_micros(self.price_micros),
        })
    }

    pub(crate) fn validate(&self) -> Result<(), InvalidField> {
        at_most("executors", self.executors.len(), MAX_EXECUTORS)?;
        self.executors.iter().try_for_each(Executor::validate)?;
        within("cpu_milli", self.cpu_milli, 0..=MAX_MILLI)?;
        within("memory_bytes", self.memory_bytes, 0..=MAX_BYTES)?;
        within("storage_bytes", self.storage_bytes, 0..=MAX_BYTES)?;
        at_most("devices", self.devices.len(), MAX_DEVICES)?;
        self.devices.iter().try_for_each(Device::validate)?;
        within("price_micros", self.price_micros, 0..=MAX_PRICE_MICROS)?;
        for (field, label) in [("region", &self.region), ("hardware", &self.hardware)] {
            label.as_deref().map(|text| name(field, text)).transpose()?;
        }
        Ok(())
    }
}

impl Executor {
    fn from_model(executor: &model::Executor) -> Executor {
        Executor {
            class: match executor.class {
                ExecutorClass::Inference => Class::Inference,
                ExecutorClass::Train => Class::Train,
                ExecutorClass::Aggregate => Class::Aggregate,
            },
            name: executor.name.to_string(),
            models: executor.models.iter().map(ToString::to_string).collect(),
            concurrency: executor.concurrency,
        }
    }

    fn to_model(&self) -> Result<Option<model::Executor>, InvalidField> {
        let class = match self.class {
            Class::Inference => ExecutorClass::Inference,
            Class::Train => ExecutorClass::Train,
            Class::Aggregate => ExecutorClass::Aggregate,
            Class::Unknown => return Ok(None),
        };
        let models = self.models.iter().map(|model| name("models", model));
        Ok(Some(model::Executor {
            class,
            name: name("executor", &self.name)?,
            models: models.collect::<Result<_, _>>()?,
            concurrency: self.concurrency,
        }))
    }

    fn validate(&self) -> Result<(), InvalidField> {
        name("executor", &self.name)?;
        at_most("models", self.models.len(), MAX_MODELS)?;
        for model in &self.models {
            name("models", model)?;
        }
        within("concurrency", self.concurrency, 1..=u64::from(MAX_CONCURRENCY))
    }
}

impl Device {
    fn from_model(device: &model::Device) -> Device {
        Device {
            model: device.model.to_string(),
            memory_bytes: device.memory_bytes,
            milli_gpu: device.milli_gpu,
        }
    }

    fn to_model(&self) -> Result<model::Device, InvalidField> {
        Ok(model::Device {
            model: name("device", &self.model)?,
            memory_bytes: self.memory_bytes,
            milli_gpu: self.milli_gpu,
        })
    }

    fn validate(&self) -> Result<(), InvalidField> {
        name("device", &self.model)?;
        within("device memory_bytes", self.memory_bytes, 0..=MAX_BYTES)?;
        within("milli_gpu", self.milli_gpu, 1..=u64::from(model::resource::WHOLE_GPU))
    }
}

impl Tagged for Class {
    const EXPECTED: &'static str = "an executor class";

    fn unit_variant(tag: &str) -> Option<Class> {
        Some(match tag {
            "inference" => Class::Inference,
            "train" => Class::Train,
            "aggregate" => Class::Aggregate,
            _ => Class::Unknown,
        })
    }
}

impl<'de> Deserialize<'de> for Class {
    fn deserialize<D: Deserializer<'de>>(reader: D) -> Result<Class, D::Error> {
        tagged::read(reader)
    }
}
