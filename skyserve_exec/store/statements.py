"""Every statement on the tables, by name, with its purpose.

The dialect is what SQLite 3.35 and PostgreSQL share (`?` stands where psycopg writes `%s`); where one has to differ,
the other form is named beside it. Literals instead of parameters for states: an index over some states serves only a
statement that names these states literally. The strings are constants, so that SQLite's compiled form is reused. A
move and a SELECT of the row cost SQLite 5 µs less than RETURNING, which goes through a temporary table.

Room: the store. Text only.
"""

from __future__ import annotations

# --- writing requests: each move is a compare-and-set that names the state it leaves ----------------------------------

# (submit) -> PENDING. A row with this id may be there already: then nothing happens.
INSERT_REQUEST = """
INSERT INTO requests (request_id, name, status, schedule_type, "user", cluster, lock_key, restartable, deadline,
                      idempotency_key, fingerprint, created_at, attempts, payload)
VALUES (?, ?, 'PENDING', ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?)
ON CONFLICT (request_id) DO NOTHING
"""

# The request that used this key before.
SELECT_BY_KEY = """
SELECT request_id, fingerprint FROM requests WHERE "user" = ? AND idempotency_key = ?
"""

# The oldest that may be claimed when none in the queue has a lock key. (PostgreSQL: FOR UPDATE SKIP LOCKED.)
SELECT_OLDEST = """
SELECT seq FROM requests WHERE status = 'PENDING' AND schedule_type = ? AND lock_key IS NULL ORDER BY seq LIMIT ?
"""

# Whether one in the queue has a lock key.
SELECT_ANY_LOCK = """
SELECT 1 FROM requests WHERE status = 'PENDING' AND schedule_type = ? AND lock_key IS NOT NULL LIMIT 1
"""

# The oldest that may be claimed: those without a lock key, and of each lock key its oldest one, unless one of the key
# runs or an earlier one waits in the other queue. Steps from key to key through the index: ten thousand requests behind
# one lock cost no more than one. (PostgreSQL: FOR UPDATE SKIP LOCKED on the outer rows.)
SELECT_OLDEST_UNLOCKED = """
WITH RECURSIVE lock_keys (lock_key) AS (
    SELECT MIN(lock_key) FROM requests WHERE status = 'PENDING' AND schedule_type = ? AND lock_key IS NOT NULL
    UNION ALL
    SELECT (SELECT MIN(r.lock_key) FROM requests r
            WHERE r.status = 'PENDING' AND r.schedule_type = ? AND r.lock_key > k.lock_key)
    FROM lock_keys k WHERE k.lock_key IS NOT NULL
), heads (seq, lock_key) AS (
    SELECT (SELECT MIN(r.seq) FROM requests r
            WHERE r.status = 'PENDING' AND r.schedule_type = ? AND r.lock_key = k.lock_key), k.lock_key
    FROM lock_keys k WHERE k.lock_key IS NOT NULL
)
SELECT seq FROM (
    SELECT seq FROM (
        SELECT seq FROM requests WHERE status = 'PENDING' AND schedule_type = ? AND lock_key IS NULL
        ORDER BY seq LIMIT ?
    ) AS without_key
    UNION ALL
    SELECT h.seq FROM heads h
    WHERE NOT EXISTS (SELECT 1 FROM requests r WHERE r.lock_key = h.lock_key AND r.lock_key IS NOT NULL
                      AND r.status IN ('PENDING', 'RUNNING') AND r.status = 'RUNNING')
      AND NOT EXISTS (SELECT 1 FROM requests r WHERE r.lock_key = h.lock_key AND r.lock_key IS NOT NULL
                      AND r.status IN ('PENDING', 'RUNNING') AND r.status = 'PENDING' AND r.seq < h.seq)
) AS claimable
ORDER BY seq LIMIT ?
"""

# PENDING -> RUNNING. One that goes on after a tail keeps the time of its first start.
CLAIM = """
UPDATE requests
SET status = 'RUNNING', slot = ?, boot_id = ?, started_at = COALESCE(started_at, ?), attempts = attempts + 1,
    reason = NULL
WHERE seq = ? AND status = 'PENDING'
"""

# RUNNING -> SUCCEEDED | FAILED | CANCELLED. Without a reason of its own, that of a cancel stays.
SETTLE = """
UPDATE requests
SET status = ?, finished_at = ?, result = ?, error = ?, exit_code = ?, peak_rss = ?,
    reason = COALESCE(?, CASE WHEN cancel_requested_at IS NOT NULL THEN reason END)
WHERE request_id = ? AND status = 'RUNNING'
"""

# RUNNING -> PENDING, at its old place. One that was cancelled never runs again. One that goes on keeps its first start.
REQUEUE = """
UPDATE requests
SET status = 'PENDING', slot = NULL, reason = ?, started_at = CASE WHEN resume IS NULL THEN NULL ELSE started_at END
WHERE request_id = ? AND status = 'RUNNING' AND cancel_requested_at IS NULL
"""

# Stays RUNNING, but in a tail instead of an executor.
HAND_OFF = """
UPDATE requests SET slot = NULL, resume = ?, reason = ? WHERE request_id = ? AND status = 'RUNNING'
"""

# PENDING -> CANCELLED, before the claim.
CANCEL_PENDING = """
UPDATE requests SET status = 'CANCELLED', finished_at = ?, error = ?, reason = NULL
WHERE request_id = ? AND status = 'PENDING'
"""

# Stays RUNNING; the first cancel's time and reason are kept.
MARK_CANCEL = """
UPDATE requests
SET reason = CASE WHEN cancel_requested_at IS NULL THEN ? ELSE reason END,
    cancel_requested_at = COALESCE(cancel_requested_at, ?)
WHERE request_id = ? AND status = 'RUNNING'
"""

# --- reading requests -------------------------------------------------------------------------------------------------

# Where one request stands.
SELECT_STATUS = "SELECT status FROM requests WHERE request_id = ?"

# Where many requests stand: one query, however many ids. (PostgreSQL: request_id = ANY(?).)
SELECT_STATUSES = """
SELECT r.request_id, r.status FROM json_each(?) AS asked JOIN requests AS r ON r.request_id = asked.value
"""

# One whole row.
SELECT_REQUEST = "SELECT * FROM requests WHERE request_id = ?"

# The same by its place in the order.
SELECT_REQUEST_BY_SEQ = "SELECT * FROM requests WHERE seq = ?"

# All that run, oldest first.
SELECT_RUNNING = "SELECT * FROM requests WHERE status = 'RUNNING' ORDER BY seq"

# All that wait or run, oldest first; a NULL is no condition.
SELECT_ACTIVE = """
SELECT request_id, status FROM (
    SELECT seq, request_id, status, cluster, "user" FROM requests WHERE status = 'PENDING'
    UNION ALL
    SELECT seq, request_id, status, cluster, "user" FROM requests WHERE status = 'RUNNING'
) AS active
WHERE (CAST(? AS TEXT) IS NULL OR cluster = ?) AND (CAST(? AS TEXT) IS NULL OR "user" = ?)
ORDER BY seq
"""

# How many wait, by queue.
COUNT_PENDING = "SELECT schedule_type, COUNT(*) FROM requests WHERE status = 'PENDING' GROUP BY schedule_type"

# Ids with a prefix.
SELECT_BY_PREFIX = (
    "SELECT request_id FROM requests WHERE request_id >= ? AND request_id < ? ORDER BY request_id LIMIT ?"
)

# The newest request.
SELECT_LATEST = "SELECT request_id FROM requests ORDER BY seq DESC LIMIT 1"

# Columns of a summary: those that may be large are not read, their places are kept.
SUMMARY = """
    seq, request_id, name, status, schedule_type, "user", cluster, lock_key, restartable, deadline, idempotency_key,
    fingerprint, created_at, started_at, finished_at, attempts, boot_id, slot, cancel_requested_at, reason, exit_code,
    peak_rss, '', NULL, NULL, NULL
"""

# The conditions of a list. A NULL is no condition; five places for states.
FILTERS = """
(CAST(? AS TEXT) IS NULL OR status IN (?, ?, ?, ?, ?)) AND (CAST(? AS TEXT) IS NULL OR name = ?)
AND (CAST(? AS TEXT) IS NULL OR "user" = ?) AND (CAST(? AS TEXT) IS NULL OR cluster = ?)
AND (CAST(? AS TEXT) IS NULL OR schedule_type = ?) AND (CAST(? AS REAL) IS NULL OR created_at >= ?)
"""

# One page of the list, newest first. Whatever the filters, the inner query reads nothing but one index that holds
# all their columns.
SELECT_PAGE = f"""
SELECT {SUMMARY} FROM requests WHERE seq IN (
    SELECT seq FROM requests WHERE seq < ? AND {FILTERS} ORDER BY seq DESC LIMIT ?
)
ORDER BY seq DESC
"""

# The same among the requests with one id prefix.
SELECT_PAGE_BY_PREFIX = f"""
SELECT {SUMMARY} FROM requests WHERE seq IN (
    SELECT seq FROM requests
    WHERE seq IN (SELECT seq FROM requests WHERE request_id >= ? AND request_id < ?) AND seq < ? AND {FILTERS}
    ORDER BY seq DESC LIMIT ?
)
ORDER BY seq DESC
"""

# The front of a queue, oldest first: a request's place in it is its position.
SELECT_FRONT = """
SELECT seq FROM (
    SELECT seq FROM (
        SELECT seq FROM requests WHERE status = 'PENDING' AND schedule_type = ? AND lock_key IS NULL
        ORDER BY seq LIMIT ?
    ) AS without_key
    UNION ALL
    SELECT seq FROM requests WHERE status = 'PENDING' AND schedule_type = ? AND lock_key IS NOT NULL
) AS front
ORDER BY seq LIMIT ?
"""

# Who occupies the executors of a queue.
SELECT_HOLDERS = """
SELECT request_id, name, started_at FROM requests
WHERE status = 'RUNNING' AND schedule_type = ? AND slot IS NOT NULL ORDER BY seq LIMIT ?
"""

# The request that holds a lock or, when none does, the oldest one before this that will.
SELECT_LOCKED_BY = """
SELECT COALESCE(
    (SELECT request_id FROM requests
     WHERE lock_key = ? AND lock_key IS NOT NULL AND status IN ('PENDING', 'RUNNING') AND status = 'RUNNING'
     ORDER BY seq LIMIT 1),
    (SELECT request_id FROM requests
     WHERE lock_key = ? AND lock_key IS NOT NULL AND status IN ('PENDING', 'RUNNING') AND status = 'PENDING' AND seq < ?
     ORDER BY seq LIMIT 1)
)
"""

# --- clusters ---------------------------------------------------------------------------------------------------------

# A new cluster; one of that name may be there already: then nothing happens.
INSERT_CLUSTER = """
INSERT INTO clusters (name, infra, status, "user", directory, resources, handle, created_at, updated_at, last_task)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (name) DO NOTHING
"""

# One cluster.
SELECT_CLUSTER = "SELECT * FROM clusters WHERE name = ?"

# All clusters.
SELECT_CLUSTERS = "SELECT * FROM clusters ORDER BY name"

# Any arrow; the caller names the state it leaves, or NULL for whichever.
SET_CLUSTER_STATUS = """
UPDATE clusters SET status = ?, updated_at = ? WHERE name = ? AND (CAST(? AS TEXT) IS NULL OR status = ?)
"""

# New facts of a cluster; a NULL leaves what is there.
UPDATE_CLUSTER = """
UPDATE clusters
SET updated_at = ?, directory = COALESCE(?, directory), resources = COALESCE(?, resources),
    handle = COALESCE(?, handle), last_task = COALESCE(?, last_task)
WHERE name = ?
"""

# A cluster is gone.
DELETE_CLUSTER = "DELETE FROM clusters WHERE name = ?"
