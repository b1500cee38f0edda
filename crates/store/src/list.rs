//! Lists of tasks: which table a query scans, and how many rows.

use hypha_engine::record::StoredTask;
use hypha_engine::store::{Filter, MAX_PAGE, Page};
use hypha_model::{Name, TaskId, TaskResult, TaskState};
use rusqlite::{Connection, OptionalExtension, params};

use crate::error::StoreError;
use crate::row_keys;
use crate::rows::{TASK_COLUMNS, micros, state_number, task, task_id};

/// The memory that a page may take: bytes of inputs and results. One task may exceed it.
const MAX_PAGE_BYTES: usize = 8 << 20;
/// Rows that one query scans: some tens of milliseconds, during which the log cannot be truncated.
const MAX_SCANNED: i64 = 50_000;

pub(crate) fn list(
    connection: &Connection,
    filter: &Filter,
    behind: Option<TaskId>,
    limit: usize,
) -> Result<Page, StoreError> {
    list_within(connection, filter, behind, limit, MAX_SCANNED)
}

fn list_within(
    connection: &Connection,
    filter: &Filter,
    behind: Option<TaskId>,
    limit: usize,
    max_scanned: i64,
) -> Result<Page, StoreError> {
    let limit = limit.clamp(1, MAX_PAGE);
    let scan = Scan::of(filter);
    let behind = match behind {
        Some(id) => row_keys::find(connection, id)?,
        None => i64::MAX,
    };
    let since = filter.since.map_or(0, row_keys::first_key);
    let stop = scan.end(connection, filter, (behind, since), max_scanned)?;

    let Scan { table, alias, index, joins, tenant, state, worker, .. } = scan;
    let sql = format!(
        "SELECT {TASK_COLUMNS} FROM {table} {alias} {index} {joins} \
         WHERE {alias}.place < ?1 AND {alias}.place >= ?2 AND {tenant} AND {state} \
         AND t.submitted >= ?5 AND (?6 IS NULL OR t.model = ?6) \
         AND (?7 IS NULL OR {worker} = ?7) ORDER BY {alias}.place DESC LIMIT ?3"
    );
    let mut statement = connection.prepare_cached(&sql)?;
    let mut rows = statement.query(params![
        behind,
        stop.unwrap_or(since),
        limit as i64,
        tenant_of(filter),
        // The row key of `since` is rounded down to the millisecond.
        filter.since.map_or(0, micros),
        filter.model.as_ref().map(Name::as_str),
        filter.worker.map(|id| *id.uuid().as_bytes()),
    ])?;
    let (mut page, mut bytes) = (Page::default(), 0);
    while let Some(row) = rows.next()? {
        let found = task(row)?;
        bytes += found.accepted.spec.input.bytes().len() + result_bytes(&found);
        let id = found.accepted.id;
        page.tasks.push(found);
        if page.tasks.len() == limit || bytes >= MAX_PAGE_BYTES {
            page.next = Some(id);
            return Ok(page);
        }
    }
    page.next = stop.map(|place| id_at(connection, place)).transpose()?;
    Ok(page)
}

fn id_at(connection: &Connection, place: i64) -> Result<TaskId, StoreError> {
    let mut statement = connection.prepare_cached("SELECT id FROM tasks WHERE place = ?1")?;
    Ok(task_id(statement.query_row([place], |row| row.get(0))?))
}

/// The table that a list scans by row key, and the joins and conditions that it needs.
struct Scan {
    table: &'static str,
    alias: &'static str,
    /// An index of the state or of the tenant, if there is one. SQLite would not choose it by itself.
    index: &'static str,
    /// The condition of that index, in columns of this table alone: rows that the index skips are not scanned.
    indexed: String,
    /// CROSS JOIN keeps SQLite from scanning the other table instead.
    joins: &'static str,
    /// The condition for the tenant, whose name is `?4` if there is one.
    tenant: &'static str,
    /// The condition for the state.
    state: String,
    /// The column of the worker.
    worker: &'static str,
}

/// The name of the tenant, if the filter has one.
fn tenant_of(filter: &Filter) -> Option<&str> {
    filter.tenant.as_ref()?.as_ref().map(Name::as_str)
}

impl Scan {
    fn of(filter: &Filter) -> Scan {
        let number = filter.state.map_or(0, state_number);
        // Used where the tenant does not matter, so that every statement has the same parameters.
        let any_tenant_sql = "?4 IS NULL";
        let tenant = match &filter.tenant {
            None => any_tenant_sql,
            Some(None) => "?4 IS NULL AND t.tenant IS NULL",
            Some(Some(_)) => "t.tenant = ?4",
        };
        let through_tasks = Scan {
            table: "tasks",
            alias: "t",
            index: "",
            indexed: any_tenant_sql.to_owned(),
            joins: "LEFT JOIN open o ON o.place = t.place LEFT JOIN ends e ON e.place = t.place",
            tenant,
            state: match filter.state {
                None => "TRUE".to_owned(),
                Some(TaskState::Queued) => "o.place IS NOT NULL AND o.worker IS NULL".to_owned(),
                Some(state) if state.is_final() => format!("e.state = {number}"),
                Some(_) => "o.worker IS NOT NULL".to_owned(),
            },
            worker: "coalesce(e.worker, o.worker)",
        };
        match filter.state {
            // Scans all tasks of the tenant in any state; tasks of other tenants cost nothing.
            _ if tenant_of(filter).is_some() => Scan {
                index: "INDEXED BY tasks_of_tenant",
                indexed: tenant.to_owned(),
                ..through_tasks
            },
            None => through_tasks,
            Some(state) if state.is_final() => {
                let is_usual = state == TaskState::Completed;
                // SQLite uses a partial index only if the query repeats the index's own condition.
                let unusual = format!("e.state = {number} AND e.state > 3");
                Scan {
                    table: "ends",
                    alias: "e",
                    index: if is_usual { "" } else { "INDEXED BY unusual_ends" },
                    indexed: match is_usual {
                        true => any_tenant_sql.to_owned(),
                        false => format!("{any_tenant_sql} AND {unusual}"),
                    },
                    joins: "CROSS JOIN tasks t ON t.place = e.place LEFT JOIN open o ON FALSE",
                    tenant,
                    state: if is_usual { format!("e.state = {number}") } else { unusual },
                    worker: "e.worker",
                }
            }
            Some(state) => Scan {
                table: "open",
                alias: "o",
                index: "",
                indexed: any_tenant_sql.to_owned(),
                joins: "CROSS JOIN tasks t ON t.place = o.place LEFT JOIN ends e ON FALSE",
                tenant,
                state: match state {
                    TaskState::Queued => "o.worker IS NULL".to_owned(),
                    _ => "o.worker IS NOT NULL".to_owned(),
                },
                worker: "o.worker",
            },
        }
    }

    /// The row key at which `max_scanned` rows have been scanned; `None` if there are fewer.
    fn end(
        &self,
        connection: &Connection,
        filter: &Filter,
        (behind, since): (i64, i64),
        max_scanned: i64,
    ) -> Result<Option<i64>, StoreError> {
        let any_tenant = filter.tenant.is_none() || tenant_of(filter).is_some();
        if filter.state.is_none() && filter.model.is_none() && filter.worker.is_none() && any_tenant
        {
            // Every scanned row matches, so the limit of the page is enough.
            return Ok(None);
        }
        let Scan { table, alias, index, indexed, .. } = self;
        let sql = format!(
            "SELECT {alias}.place FROM {table} {alias} {index} \
             WHERE {alias}.place < ?1 AND {alias}.place >= ?2 AND {indexed} \
             ORDER BY {alias}.place DESC LIMIT 1 OFFSET ?3"
        );
        let mut statement = connection.prepare_cached(&sql)?;
        let stop = statement
            .query_row(params![behind, since, max_scanned - 1, tenant_of(filter)], |row| {
                row.get(0)
            });
        Ok(stop.optional()?)
    }
}

fn result_bytes(task: &StoredTask) -> usize {
    let result = task.finished.as_ref().and_then(|finished| finished.result.as_ref());
    result.and_then(TaskResult::payload).map_or(0, |payload| payload.bytes().len())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hypha_engine::Record;
    use hypha_engine::record::{AcceptedTask, FinishedTask};
    use hypha_model::{AttemptId, Fence, Rng, Span, TaskSpec, Time, WorkerId};

    use super::*;

    const TASKS: u64 = 40;

    fn at(number: u64) -> Time {
        Time::from_micros(1_700_000_000_000_000) + Span::from_millis(number)
    }

    fn id(number: u64) -> TaskId {
        TaskId::new(at(number), &mut Rng::new(number))
    }

    /// The first ten have failed, the next ten have completed, the next ten are dispatched, the last are queued.
    /// Every ninth is for a rare model, every fourth belongs to a tenant.
    fn records(worker: WorkerId) -> Vec<Record> {
        let accepted = |number: u64| {
            let tenant = number.is_multiple_of(4).then(|| "acme".parse().unwrap());
            let mut spec = TaskSpec { tenant, ..TaskSpec::default() };
            let model = if number.is_multiple_of(9) { "rare" } else { "usual" };
            spec.requirement.model = model.parse().ok();
            Record::Accepted(Arc::new(AcceptedTask {
                id: id(number),
                spec: Arc::new(spec),
                submitted: at(number),
                deadline: None,
                idempotency_key: None,
                bind_at_once: false,
            }))
        };
        let then = |number: u64| match number {
            0..20 => Some(Record::Finished(Arc::new(FinishedTask {
                task: id(number),
                state: if number < 10 { TaskState::Failed } else { TaskState::Completed },
                attempts: 0,
                worker: number.is_multiple_of(2).then_some(worker),
                started: None,
                finished: at(number + 1),
                result: None,
                error: None,
                failed: Default::default(),
            }))),
            20..30 => Some(Record::AttemptDispatched {
                attempt: AttemptId { task: id(number), number: 1 },
                fence: Fence(number),
                worker,
                at: at(number),
            }),
            _ => None,
        };
        (0..TASKS).map(accepted).chain((0..TASKS).filter_map(then)).collect()
    }

    /// Whatever rows are skipped, and however few one query scans.
    #[test]
    fn bounded_scans_find_the_same_tasks_as_a_full_scan() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tasks.db");
        let connection = crate::schema::writer(&path, &crate::Options::default()).unwrap();
        let worker = WorkerId::new(Time::ZERO, &mut Rng::new(1));
        crate::write::apply(&connection, records(worker).into_iter()).unwrap();
        let everything = list_within(&connection, &Filter::default(), None, 1_000, 1_000).unwrap();
        let states = TaskState::ALL.map(Some).into_iter().chain([None]);
        let tenants = [None, Some(None), Some("acme".parse().ok()), Some("umbrella".parse().ok())];
        for (state, tenant) in states.flat_map(|state| tenants.clone().map(|it| (state, it))) {
            let rare: Option<Name> = "rare".parse().ok();
            let others =
                [(None, None, None), (rare.clone(), None, None), (rare, Some(worker), Some(at(5)))];
            for (model, worker, since) in others {
                let filter = Filter { state, model, worker, since, tenant: tenant.clone() };
                check(&connection, &filter, &everything.tasks);
            }
        }
    }

    /// However few rows one query scans, the pages together hold the tasks that match the filter.
    fn check(connection: &Connection, filter: &Filter, everything: &[StoredTask]) {
        let expected: Vec<StoredTask> =
            everything.iter().filter(|task| filter.matches(task)).cloned().collect();
        let whole = list_within(connection, filter, None, 1_000, 1_000).unwrap();
        assert_eq!((&whole.tasks, whole.next), (&expected, None), "{filter:?}");
        for max_scanned in [1, 3, 10] {
            let (mut found, mut behind, mut pages) = (Vec::new(), None, 0);
            loop {
                let page = list_within(connection, filter, behind, 2, max_scanned).unwrap();
                found.extend(page.tasks);
                (behind, pages) = (page.next, pages + 1);
                assert!(pages <= 2 * TASKS, "the list does not end");
                if behind.is_none() {
                    break;
                }
            }
            assert_eq!(found, expected, "{max_scanned} rows at a time, {filter:?}");
        }
    }

    /// By SQLite's query plans, no list sorts, and rare states and tenants use their index.
    #[test]
    fn list_queries_use_their_indices() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tasks.db");
        let connection = crate::schema::writer(&path, &crate::Options::default()).unwrap();
        let states = TaskState::ALL.map(Some);
        let tenants = [None, Some(None), Some("acme".parse().ok())];
        for (state, tenant) in
            states.into_iter().chain([None]).flat_map(|state| tenants.clone().map(|it| (state, it)))
        {
            let filter = Filter { state, tenant, ..Filter::default() };
            let Scan { table, alias, index, joins, tenant, state: condition, .. } =
                Scan::of(&filter);
            let sql = format!(
                "EXPLAIN QUERY PLAN SELECT {TASK_COLUMNS} FROM {table} {alias} {index} {joins} \
                 WHERE {alias}.place < 9 AND {alias}.place >= 0 AND {tenant} AND {condition} \
                 ORDER BY {alias}.place DESC LIMIT 10"
            );
            let mut statement = connection.prepare(&sql).unwrap();
            let plan: Vec<String> = statement
                .query_map([None::<i64>; 4], |row| row.get(3))
                .unwrap()
                .map(Result::unwrap)
                .collect();
            let first = match state {
                _ if tenant_of(&filter).is_some() => {
                    "SEARCH t USING INDEX tasks_of_tenant (tenant=? AND rowid>? AND rowid<?)"
                        .to_owned()
                }
                Some(TaskState::Failed | TaskState::Cancelled | TaskState::Expired) => {
                    "SEARCH e USING INDEX unusual_ends (state=? AND rowid>? AND rowid<?)".to_owned()
                }
                _ => format!("SEARCH {alias} USING INTEGER PRIMARY KEY (rowid>? AND rowid<?)"),
            };
            assert_eq!(plan[0], first, "{state:?} {plan:?}");
            let others = plan[1..].iter();
            for step in others {
                assert!(
                    step.contains("PRIMARY KEY (rowid=?)") || step.contains("LEFT-JOIN"),
                    "{plan:?}"
                );
            }
        }
    }
}
