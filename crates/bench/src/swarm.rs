//! A scheduler, and optionally a gateway and workers, as processes.

use std::net::SocketAddr;
use std::time::Duration;

use hypha_local::{GATEWAY_CONFIG, NodeFiles};
use hypha_model::NodeRole;

use crate::counts::{self, Counts};
use crate::lab::{Lab, Process, free_address};

/// How long the nodes may take to find each other.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// The nodes to start.
pub(crate) struct Plan {
    /// The scheduler's configuration from `[scheduler]` on.
    pub(crate) scheduler: String,
    /// The executors in each worker's configuration.
    pub(crate) workers: Vec<String>,
    /// The number of back ends in the scheduler's configuration.
    pub(crate) servers: usize,
}

pub(crate) struct Swarm<'a> {
    lab: &'a Lab,
    pub(crate) api: SocketAddr,
    gateway_at: Option<String>,
    pub(crate) scheduler: Process,
    others: Vec<Process>,
}

impl<'a> Swarm<'a> {
    /// Starts all nodes, and returns when the scheduler has all its workers.
    pub(crate) async fn start(lab: &'a Lab, plan: &Plan) -> anyhow::Result<Swarm<'a>> {
        let mut swarm = Swarm::start_without_workers(lab, plan).await?;
        swarm.start_workers(plan).await?;
        Ok(swarm)
    }

    /// Starts all nodes but the workers.
    pub(crate) async fn start_without_workers(
        lab: &'a Lab,
        plan: &Plan,
    ) -> anyhow::Result<Swarm<'a>> {
        let mut nodes = vec![NodeFiles::new("scheduler", NodeRole::Scheduler, scheduler(plan))];
        let names = names(plan);
        for (name, config) in names.iter().zip(&plan.workers) {
            nodes.push(NodeFiles::new(name, NodeRole::Worker, worker(name, config)));
        }
        if !names.is_empty() {
            nodes.push(NodeFiles::new("gateway", NodeRole::Gateway, GATEWAY_CONFIG));
        }
        lab.files(&nodes)?;
        let mut others = Vec::new();
        let mut gateway_at = None;
        if !names.is_empty() {
            let at = format!("/ip4/127.0.0.1/tcp/{}", free_address()?.port());
            others.push(lab.node("gateway", "gateway", |node| node.flag("--listen", &at))?);
            gateway_at = Some(at);
        }
        let api = free_address()?;
        let scheduler = start_scheduler(lab, api, gateway_at.as_deref())?;
        let mut swarm = Swarm { lab, api, gateway_at, scheduler, others };
        let servers = plan.servers;
        let what = format!("ready with {servers} back ends");
        swarm.wait_until(&what, |counts| counts.workers.available >= servers).await?;
        Ok(swarm)
    }

    /// Starts the workers of the plan, and returns when the scheduler has them.
    pub(crate) async fn start_workers(&mut self, plan: &Plan) -> anyhow::Result<()> {
        for name in names(plan) {
            let gateway = self.gateway_at.as_deref().unwrap_or_default();
            let worker = self.lab.node(&name, "worker", |node| node.flag("--gateway", gateway))?;
            self.others.push(worker);
        }
        let workers = plan.workers.len() + plan.servers;
        let what = format!("ready with {workers} workers");
        self.wait_until(&what, |counts| counts.workers.available >= workers).await
    }

    /// Waits until the scheduler is ready and its counts satisfy `wanted`.
    pub(crate) async fn wait_until(
        &mut self,
        what: &str,
        wanted: impl Fn(&Counts) -> bool,
    ) -> anyhow::Result<()> {
        counts::wait_until(self.api, &mut self.scheduler, START_TIMEOUT, what, wanted).await
    }

    /// Kills the scheduler and starts it again at the same address.
    pub(crate) fn restart_scheduler(&mut self) -> anyhow::Result<()> {
        self.scheduler.kill();
        self.scheduler = start_scheduler(self.lab, self.api, self.gateway_at.as_deref())?;
        Ok(())
    }
}

fn names(plan: &Plan) -> Vec<String> {
    (1..=plan.workers.len()).map(|number| format!("worker-{number}")).collect()
}

fn start_scheduler(lab: &Lab, api: SocketAddr, gateway: Option<&str>) -> anyhow::Result<Process> {
    lab.node("scheduler", "scheduler", |node| {
        let node = node.variable("HYPHA_SCHEDULER__API__BIND_ADDRESS", &api.to_string());
        match gateway {
            Some(gateway) => node.flag("--gateway", gateway),
            None => node,
        }
    })
}

/// The scheduler searches for workers often, so that the measurement begins soon.
fn scheduler(plan: &Plan) -> String {
    format!(
        "listen_addresses = [\"/ip4/127.0.0.1/tcp/0\"]\n\
         data_dir = \"scheduler-data\"\n\
         [scheduler]\n\
         discovery_interval = 1\n\
         {}\n",
        plan.scheduler
    )
}

fn worker(name: &str, config: &str) -> String {
    format!(
        "listen_addresses = [\"/ip4/127.0.0.1/tcp/0\"]\n\
         data_dir = \"{name}-data\"\n\
         {config}\n"
    )
}

/// An executor of the built-in model that returns its input.
pub(crate) fn echo(concurrency: u32) -> String {
    format!(
        "[[executors]]\n\
         name = \"builtin\"\n\
         runtime = \"builtin\"\n\
         models = [\"echo\"]\n\
         concurrency = {concurrency}\n"
    )
}
