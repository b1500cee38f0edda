//! Counts the rows of a table.

pub(crate) fn rows(database: &std::path::Path, table: &str) -> u64 {
    let connection = rusqlite::Connection::open(database).unwrap();
    let sql = format!("SELECT count(*) FROM {table}");
    let rows: i64 = connection.query_row(&sql, (), |row| row.get(0)).unwrap();
    rows.unsigned_abs()
}
