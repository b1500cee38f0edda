//! Trees that find the best worker without looking at all of them.
//!
//! A worker is a leaf. Each inner node holds bounds over the leaves below it: the least key, the earliest
//! room, and the most of each resource. A search goes down only where the bounds leave a chance, so it
//! visits a path instead of the pool. Bounds are rounded in the worker's favour; the exact test is made
//! at the leaf.

/// What a leaf offers, or the best of each that the leaves below an inner node offer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bounds {
    /// What the strategy minimises; infinite where no worker is available, and, under a strategy that
    /// needs room now, where there is none.
    pub(crate) key: f64,
    /// When there is room for one more task, in seconds of absolute time.
    pub(crate) room_at_s: f64,
    /// Run time relative to the hardware's, with the tries that a success is expected to take.
    pub(crate) factor: f32,
    /// The way there and back.
    pub(crate) rtt_s: f32,
    /// Tasks at the worker, begun or not.
    pub(crate) load: u32,
    pub(crate) cpu_milli: u32,
    pub(crate) memory_mib: u32,
    pub(crate) storage_mib: u32,
    pub(crate) gpu_memory_mib: u32,
    pub(crate) gpus: u32,
    /// One bit for each (hashed) thing that the worker can do; see `capability.rs`.
    pub(crate) abilities: u64,
}

/// What a task needs of a leaf, in the units of [`Bounds`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Need {
    pub(crate) room_by_s: f64,
    pub(crate) cpu_milli: u32,
    pub(crate) memory_mib: u32,
    pub(crate) storage_mib: u32,
    pub(crate) gpu_memory_mib: u32,
    pub(crate) gpus: u32,
    pub(crate) abilities: u64,
}

impl Need {
    /// The same, where bounds are about what is free and the task need not begin at once.
    pub(crate) fn whatever_is_free(self) -> Need {
        Need { cpu_milli: 0, memory_mib: 0, storage_mib: 0, ..self }
    }
}

impl Bounds {
    /// A leaf without a worker, or whose worker is not available.
    pub(crate) const NONE: Bounds = Bounds {
        key: f64::INFINITY,
        room_at_s: f64::INFINITY,
        factor: f32::INFINITY,
        rtt_s: f32::INFINITY,
        load: u32::MAX,
        cpu_milli: 0,
        memory_mib: 0,
        storage_mib: 0,
        gpu_memory_mib: 0,
        gpus: 0,
        abilities: 0,
    };

    /// Whether a leaf below may do. False is certain, true is a maybe. Every task asks for some ability, so
    /// it is false where there is no worker.
    pub(crate) fn may_hold(&self, need: &Need) -> bool {
        self.abilities & need.abilities == need.abilities
            && self.room_at_s <= need.room_by_s
            && self.cpu_milli >= need.cpu_milli
            && self.memory_mib >= need.memory_mib
            && self.storage_mib >= need.storage_mib
            && self.gpus >= need.gpus
            && self.gpu_memory_mib >= need.gpu_memory_mib
    }

    fn join(&self, other: &Bounds) -> Bounds {
        Bounds {
            key: self.key.min(other.key),
            room_at_s: self.room_at_s.min(other.room_at_s),
            factor: self.factor.min(other.factor),
            rtt_s: self.rtt_s.min(other.rtt_s),
            load: self.load.min(other.load),
            cpu_milli: self.cpu_milli.max(other.cpu_milli),
            memory_mib: self.memory_mib.max(other.memory_mib),
            storage_mib: self.storage_mib.max(other.storage_mib),
            gpu_memory_mib: self.gpu_memory_mib.max(other.gpu_memory_mib),
            gpus: self.gpus.max(other.gpus),
            abilities: self.abilities | other.abilities,
        }
    }
}

/// About the depth of a tree of a million workers.
const STEPS_A_LOOK: u32 = 20;

/// How far a search for the least has come, and when it ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    best: f64,
    /// What is better by less than this share is not looked for.
    noise: f64,
    looks_left: u32,
    /// Nodes to go through once something has been found: a node may promise the speed of one worker and
    /// the room of another, all the way down to its leaves.
    steps_left: u32,
}

impl Search {
    pub(crate) fn new(noise: f64, looks: u32) -> Search {
        Search {
            best: f64::INFINITY,
            noise,
            looks_left: looks,
            steps_left: STEPS_A_LOOK.saturating_mul(looks),
        }
    }

    /// Whether it is worth to go where nothing is less than `lower`.
    pub(crate) fn may_improve(&self, lower: f64) -> bool {
        lower < self.best - self.noise * self.best.abs().min(f64::MAX)
            && self.looks_left > 0
            && (self.steps_left > 0 || self.best == f64::INFINITY)
    }

    fn found(&mut self, score: f64) {
        self.best = self.best.min(score);
        self.looks_left -= 1;
    }
}

/// A complete binary tree over positions `0..capacity`.
#[derive(Clone, Debug)]
pub(crate) struct Tree {
    /// Node 1 is the root, the children of node i are 2i and 2i+1, the leaves are the last half.
    nodes: Vec<Bounds>,
}

impl Tree {
    pub(crate) fn new() -> Tree {
        Tree { nodes: vec![Bounds::NONE; 2] }
    }

    pub(crate) fn root(&self) -> &Bounds {
        &self.nodes[1]
    }

    fn capacity(&self) -> usize {
        self.nodes.len() / 2
    }

    pub(crate) fn leaf(&self, position: usize) -> &Bounds {
        &self.nodes[self.capacity() + position]
    }

    /// Puts `leaf` at `position`, growing the tree if it must.
    pub(crate) fn set(&mut self, position: usize, leaf: Bounds) {
        while position >= self.capacity() {
            self.double();
        }
        let mut at = self.capacity() + position;
        if self.nodes[at] == leaf {
            return;
        }
        self.nodes[at] = leaf;
        while at > 1 {
            at /= 2;
            let joined = self.nodes[2 * at].join(&self.nodes[2 * at + 1]);
            if self.nodes[at] == joined {
                return;
            }
            self.nodes[at] = joined;
        }
    }

    /// The first position at or after `from` that `accept` takes.
    pub(crate) fn first_from(
        &self,
        from: usize,
        need: &Need,
        accept: &mut impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        self.first_below(1, self.capacity(), from, need, accept)
    }

    fn first_below(
        &self,
        node: usize,
        width: usize,
        from: usize,
        need: &Need,
        accept: &mut impl FnMut(usize) -> bool,
    ) -> Option<usize> {
        // The leftmost leaf below `node` is found by going left until the last level.
        let start = node * width - self.capacity();
        if start + width <= from || !self.nodes[node].may_hold(need) {
            return None;
        }
        if width == 1 {
            return accept(start).then_some(start);
        }
        self.first_below(2 * node, width / 2, from, need, accept)
            .or_else(|| self.first_below(2 * node + 1, width / 2, from, need, accept))
    }

    /// Visits leaves in a promising order. `lower` bounds from below what `visit` could return for the
    /// leaves under a node; `visit` returns the leaf's exact score, or `None` if it refuses.
    pub(crate) fn least(
        &self,
        need: &Need,
        lower: &impl Fn(&Bounds) -> f64,
        visit: &mut impl FnMut(usize) -> Option<f64>,
        search: &mut Search,
    ) {
        if self.nodes[1].may_hold(need) {
            self.least_below(1, need, lower, visit, search);
        }
    }

    fn least_below(
        &self,
        node: usize,
        need: &Need,
        lower: &impl Fn(&Bounds) -> f64,
        visit: &mut impl FnMut(usize) -> Option<f64>,
        search: &mut Search,
    ) {
        if node >= self.capacity() {
            if let Some(score) = visit(node - self.capacity()) {
                search.found(score);
            }
            return;
        }
        let bound = |child: usize| {
            let bounds = &self.nodes[child];
            if bounds.may_hold(need) { lower(bounds) } else { f64::INFINITY }
        };
        let (left, right) = (bound(2 * node), bound(2 * node + 1));
        let order = if left <= right {
            [(2 * node, left), (2 * node + 1, right)]
        } else {
            [(2 * node + 1, right), (2 * node, left)]
        };
        for (child, bound) in order {
            if search.may_improve(bound) {
                search.steps_left = search.steps_left.saturating_sub(1);
                self.least_below(child, need, lower, visit, search);
            }
        }
    }

    fn double(&mut self) {
        let leaves = self.nodes[self.capacity()..].to_vec();
        let capacity = 2 * self.capacity();
        self.nodes = vec![Bounds::NONE; 2 * capacity];
        self.nodes[capacity..capacity + leaves.len()].copy_from_slice(&leaves);
        for at in (1..capacity).rev() {
            self.nodes[at] = self.nodes[2 * at].join(&self.nodes[2 * at + 1]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hypha_model::Rng;

    const ANYTHING: Need = Need {
        room_by_s: 0.0,
        cpu_milli: 0,
        memory_mib: 0,
        storage_mib: 0,
        gpu_memory_mib: 0,
        gpus: 0,
        abilities: 1,
    };

    fn leaf(key: f64, gpus: u32) -> Bounds {
        Bounds { key, room_at_s: 0.0, factor: 1.0, gpus, abilities: 1, ..Bounds::NONE }
    }

    /// The tree against a plain scan, on random pools and needs.
    #[test]
    fn finds_what_a_scan_finds() {
        let mut rng = Rng::new(1);
        for _ in 0..300 {
            let size = 1 + rng.below(70) as usize;
            let mut tree = Tree::new();
            let mut leaves = vec![Bounds::NONE; size];
            for _ in 0..2 * size {
                let at = rng.below(size as u64) as usize;
                leaves[at] = match rng.below(4) {
                    0 => Bounds::NONE,
                    _ => leaf(rng.below(50) as f64, rng.below(3) as u32),
                };
                tree.set(at, leaves[at]);
            }
            let need = Need { gpus: rng.below(3) as u32, ..ANYTHING };
            let from = rng.below(size as u64 + 3) as usize;
            let fits = |at: usize| leaves.get(at).is_some_and(|leaf| leaf.may_hold(&need));
            let scanned = (from..size).find(|&at| fits(at));
            assert_eq!(tree.first_from(from, &need, &mut |at| fits(at)), scanned);

            let least = (0..size).filter(|&at| fits(at)).map(|at| leaves[at].key);
            let least = least.fold(f64::INFINITY, f64::min);
            let mut search = Search::new(0.0, u32::MAX);
            let mut visit = |at: usize| fits(at).then(|| leaves[at].key);
            tree.least(&need, &|b| b.key, &mut visit, &mut search);
            assert_eq!(search.best, least);
        }
    }

    #[test]
    fn a_search_visits_a_path_and_not_the_pool() {
        let mut tree = Tree::new();
        for at in 0..10_000 {
            tree.set(at, leaf(((at * 7919) % 10_000) as f64, 0));
        }
        let (mut visits, mut search) = (0, Search::new(0.0, u32::MAX));
        let mut visit = |at: usize| {
            visits += 1;
            Some(((at * 7919) % 10_000) as f64)
        };
        tree.least(&ANYTHING, &|b| b.key, &mut visit, &mut search);
        assert_eq!((search.best, visits), (0.0, 1));
    }
}
