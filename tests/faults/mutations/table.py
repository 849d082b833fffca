"""The known-bad changes. When one of these files changes, the text here has to follow: a test compares them."""

from __future__ import annotations

from tests.faults.mutations.mutation import Change, Mutation

_REAL = "tests/faults/model/test_real_leases.py::"
_SCHEDULER = "tests/workers/engine/test_scheduler.py::"
_MACHINE = "tests/workers/transfer/test_read_machine.py::"
_GATHER = "tests/workers/sharding/test_gather.py::"
_HOLDER = "tests/core/leases/test_holder.py::"
_CONTRACT = "tests/core/leases/test_store_contract.py::"
_FLOW = "tests/router/steps/test_run.py::"
_FAILOVER = "tests/router/steps/test_migration.py::"
_ENDS = "tests/router/steps/test_exit.py::"
_SEEN = "tests/router/request/test_sent_tokens.py::"
_ABORTS = "tests/router/upstream/test_prefill_aborts.py"

FENCE = (
    Mutation(
        "fence-removed",
        "D takes whatever it has read, without comparing versions",
        (
            Change(
                "workers/transfer/reads/fence.py",
                "return [int(i) for i in np.flatnonzero((found > promise) | (found <= promise - MAX_ALLOCATIONS))]",
                "return []",
            ),
        ),
        (_REAL + "test_blocks_that_were_overwritten_are_accepted_only_without_the_fence",),
    ),
    Mutation(
        "one-table-is-enough",
        "of several ranks that are read, the versions of the last one decide",
        (Change("workers/transfer/reads/read_machine.py", "self._all_kept &= kept", "self._all_kept = kept"),),
        (_MACHINE + "test_one_overwritten_table_makes_it_stale_once_all_are_compared",),
    ),
    Mutation(
        "version-after-overwrite",
        "P changes a block's version after it has overwritten the block",
        (
            Change("workers/rank/runner.py", "        self._versions.store(step.fresh)\n", ""),
            Change(
                "workers/rank/runner.py",
                "        return StepResult(",
                "        self._versions.store(step.fresh)\n        return StepResult(",
            ),
        ),
        ("tests/workers/rank/test_versions_first.py",),
    ),
    Mutation(
        "version-after-read",
        "D changes the versions of blocks that a read fills only once the read has begun",
        (
            Change("workers/transfer/agent_loop.py", "        self._versions.store(read.fresh)\n", ""),
            Change(
                "workers/transfer/agent_loop.py",
                "        if ended.machine.tells_peer:\n",
                "        self._versions.store(read.fresh)\n        if ended.machine.tells_peer:\n",
            ),
        ),
        ("tests/workers/transfer/test_read_order.py::test_a_read_stores_versions_before_it_is_posted",),
    ),
    Mutation(
        "version-at-release",
        "a block's version changes when its lease ends, so that reads are refused that hold what was promised",
        (
            Change(
                "workers/engine/blocks/block_pool.py",
                "                    self._retire(block)\n",
                "                    self._last_version += 1\n"
                "                    self._versions[block] = self._last_version\n"
                "                    self._retire(block)\n",
            ),
        ),
        ("tests/workers/engine/test_block_pool.py::TestPoolMachine",),
    ),
    Mutation(
        "stale-read-keeps-all",
        "of a read that the fence refused, D keeps what comes before the last stale block, not the first",
        (
            Change(
                "workers/engine/scheduling/sequence_reads.py",
                "first_bad = min(read[block] for block in stale)",
                "first_bad = max(read[block] for block in stale)",
            ),
        ),
        (
            _SCHEDULER + "test_stale_blocks_are_counted_from_the_start_of_the_prompt_not_of_the_read",
            _SCHEDULER + "test_a_stale_read_keeps_what_comes_before_the_first_stale_block",
        ),
    ),
)

READS = (
    Mutation(
        "blocks-reused-during-a-read",
        "an aborted read's blocks are free at once, although NIXL may still write them",
        (
            Change(
                "workers/engine/scheduling/scheduler.py",
                "            self._cancels[seq.read_id] = self.reads.cancel(seq)\n",
                "            self._cancels[seq.read_id] = self.reads.cancel(seq)\n"
                "            self.pool.free(seq.blocks)\n"
                "            seq.blocks = []\n",
            ),
        ),
        (_SCHEDULER + "test_an_aborted_read_keeps_its_blocks_until_it_has_ended",),
    ),
    Mutation(
        "cancelled-read-ends-at-once",
        "a cancelled read counts as ended while a piece of it is in flight",
        (
            Change(
                "workers/transfer/reads/read_machine.py",
                "    (_S.READING, _E.CANCEL): _S.CANCELLING,",
                "    (_S.READING, _E.CANCEL): _S.CANCELLED,",
            ),
        ),
        (_MACHINE + "test_a_cancelled_read_ends_with_its_last_transfer",),
    ),
    Mutation(
        "notification-counted-twice",
        "a notification that arrives twice counts as two readers",
        (
            Change("workers/sharding/gather.py", "(num_members, set())", "(num_members, [])"),
            Change("workers/sharding/gather.py", "heard.add(member)", "heard.append(member)"),
        ),
        (
            "tests/workers/transfer/test_read_notices.py::test_all_readers_have_to_tell_and_none_counts_twice",
            _GATHER + "test_a_transfer_ends_with_the_last_of_its_members",
        ),
    ),
    Mutation(
        "failed-read-tells-p",
        "D tells P that it has read although the read failed, so that the next D finds nothing",
        (
            Change(
                "workers/transfer/reads/read_machine.py",
                "return self.state in {ReadState.DONE, ReadState.STALE}",
                "return self.state is not ReadState.CANCELLED",
            ),
        ),
        (_MACHINE + "test_a_failed_read_ends_with_its_last_transfer_and_the_peer_is_not_told",),
    ),
)

LEASES = (
    Mutation(
        "freed-by-ps-own-deadline",
        "P frees a lease's blocks when it believes the deadline to be over, whatever the store says of a renewal",
        (
            Change(
                "core/leases/holder.py",
                "        if status.state is LeaseState.HELD:\n",
                "        if status.state is LeaseState.HELD and lease.deadline_ms > now_ms:\n",
            ),
        ),
        (_HOLDER + "test_a_renewal_that_p_hears_of_late_counts",),
    ),
    Mutation(
        "freed-when-the-store-is-silent",
        "P frees what is overdue as soon as the store does not answer, without the grace",
        (
            Change(
                "core/leases/holder.py",
                "if now_ms < self._silent_since_ms + self._grace_ms:",
                "if now_ms < self._silent_since_ms:",
            ),
        ),
        (_HOLDER + "test_silence_keeps_everything_for_the_grace_and_then_ends_what_is_overdue",),
    ),
    Mutation(
        "renewal-of-one-engine",
        "the router renews the leases of the first engine and of no other",
        (
            Change(
                "core/leases/renewal.py",
                "return [work for work in works if work is not None]",
                "return [work for work in works if work is not None][:1]",
            ),
        ),
        ("tests/core/leases/test_renewal.py::test_leases_of_all_engines_that_are_due_are_renewed",),
    ),
    Mutation(
        "renewal-revives",
        "a lease that was released can be renewed",
        (Change("core/leases/in_redis/lua/renew.lua", "elseif score < 0 then", "elseif false then"),),
        (_CONTRACT + "test_released_lease_is_due_at_once_and_cannot_be_held_again",),
    ),
    Mutation(
        "overtaken-grant-held",
        "a release that reaches the store before the grant is forgotten, so that the grant holds the lease",
        (
            Change(
                "core/leases/in_redis/lua/release.lua",
                "redis.call('SET', KEYS[i - 2], 'released', 'PX', ARGV[2], 'NX') and true or found",
                "found",
            ),
        ),
        (_CONTRACT + "test_a_release_that_overtakes_its_grant_ends_the_lease",),
    ),
    Mutation(
        "deadline-by-ps-clock",
        "a lease's deadline is counted by the clock of the machine that grants it, not by the clock of Redis",
        (
            Change(
                "core/leases/in_redis/store.py",
                "numbers = self._grant.run(keys, [duration_ms, DEAD_ENGINE_MARGIN_MS, *batch])",
                "import time\n\n            "
                "now_ms = int(time.time() * 1000)\n            "
                "numbers = self._grant.run(keys, [now_ms + duration_ms, DEAD_ENGINE_MARGIN_MS, *batch])",
            ),
            Change(
                "core/leases/in_redis/lua/grant.lua",
                "local deadline = now + ARGV[1]",
                "local deadline = tonumber(ARGV[1])",
            ),
        ),
        (_CONTRACT + "test_granted_lease_is_held_for_its_duration",),
    ),
    Mutation(
        "outcome-overwritten",
        "an outcome that was told may change: a late end of a lease that was read says expired",
        (Change("core/leases/in_redis/lua/reap.lua", "outcome, 'PX', ARGV[1], 'NX')", "outcome, 'PX', ARGV[1])"),),
        (_CONTRACT + "test_an_outcome_that_was_told_is_final",),
    ),
    Mutation(
        "dead-routers-leases-kept",
        "P keeps what a dead router's requests held until it expires",
        (
            Change(
                "workers/leases/engine_leases.py",
                "return self.release(self._engine.leases.ending_with(suffix))",
                "return self.release([])",
            ),
        ),
        ("tests/workers/leases/test_engine_leases.py::test_all_leases_of_a_suffix_are_dropped_granted_or_not",),
    ),
)

ROUTER = (
    Mutation(
        "exit-keeps-the-lease",
        "a request that is cancelled ends without a release of its lease",
        (Change("router/request/exchange.py", "        self.held.drop_lease()\n", ""),),
        (_ENDS + "test_a_request_ends_when_its_client_leaves",),
    ),
    Mutation(
        "exit-can-be-cancelled",
        "the exit awaits something before it gives back what is held, so that a second cancellation ends it there",
        (
            Change(
                "router/front/worker_calls.py",
                "            self._intake.exit.settle(request, error)\n",
                "            await asyncio.sleep(0)\n            self._intake.exit.settle(request, error)\n",
            ),
        ),
        ("tests/router/steps/test_second_cancel.py",),
    ),
    Mutation(
        "unread-answer-is-nobodys",
        "P is not told of an answer that nobody will read, so its lease holds the blocks until it expires",
        (
            Change(
                "router/request/held.py",
                "            self._releaser.abort_unread(unread, request_id)\n",
                "            pass\n",
            ),
        ),
        (_ABORTS,),
    ),
    Mutation(
        "failed-d-asked-again",
        "a request whose D failed before its first byte is sent to the same D",
        (Change("router/request/attempts.py", "        self.tried_decode |= {worker}\n", ""),),
        (
            "tests/router/steps/test_other_decode_worker.py::test_a_d_that_fails_before_its_first_byte_is_not_asked_again",
        ),
    ),
    Mutation(
        "broken-d-asked-again",
        "a stream whose D broke off goes on at the same D",
        (Change("router/request/attempts.py", "            self.failed_decode |= {worker}\n", "            pass\n"),),
        (
            "tests/router/steps/test_other_decode_worker.py::test_a_d_that_fails_in_the_middle_of_a_stream_is_not_asked_again",
        ),
    ),
    Mutation(
        "first-token-repeated",
        "P's first token is not among those that a broken stream goes on after, so the client gets it twice",
        (Change("router/request/sent_tokens.py", '        self._ids += b":%d" % token\n', ""),),
        (_FAILOVER + "test_another_d_goes_on_with_a_stream_that_breaks",),
    ),
    Mutation(
        "ids-of-the-stream-not-kept",
        "D's tokens are shown, but not kept for whoever may have to go on",
        (Change("router/request/sent_tokens.py", "                self._ids += line\n", ""),),
        (
            _SEEN + "test_a_client_is_shown_the_same_however_the_stream_is_cut",
            _FAILOVER + "test_another_d_goes_on_with_a_stream_that_breaks",
        ),
    ),
    Mutation(
        "last-words-sent-at-once",
        "the end of a stream is sent before all of it is there, so a D that dies in it leaves half an end",
        (
            Change(
                "router/request/sent_tokens.py",
                "        if self._last_words.endswith(DONE_EVENT):\n",
                "        if self._last_words:\n",
            ),
        ),
        (_FAILOVER + "test_another_d_goes_on_with_a_stream_that_breaks",),
    ),
    Mutation(
        "renewed-for-ever",
        "the router goes on renewing a lease whose blocks D has read",
        (
            Change(
                "router/engines/stored_lease.py", "        self._renewer.untrack(self.engine_id, self.lease_id)\n", ""
            ),
        ),
        (_FLOW + "test_the_lease_is_kept_until_d_answers",),
    ),
    Mutation(
        "kill-every-worker",
        "a request may take one worker after the other with it",
        (
            Change(
                "router/request/attempts.py",
                "len(self.dead_engines) >= limits.max_worker_deaths:",
                "len(self.dead_engines) < 0:",
            ),
        ),
        ("tests/router/steps/test_migration.py",),
    ),
    Mutation(
        "clients-name-blocks",
        "a client's own kv_transfer_params reach the workers, which read whatever memory it names",
        (
            Change("router/request/validated.py", '    body.pop("kv_transfer_params", None)\n', ""),
            Change("router/engines/baton/bodies.py", '    tail.pop("kv_transfer_params", None)\n', ""),
        ),
        ("tests/router/request/test_client_params.py",),
    ),
    Mutation(
        "cancellation-swallowed-once",
        "a task that talks to Redis is cancelled once, which redis-py may swallow",
        (
            Change("core/process/task_end.py", "    while not task.done():\n", "    if not task.done():\n"),
            Change(
                "core/process/task_end.py", "await asyncio.wait({task}, timeout=AGAIN_S)", "await asyncio.wait({task})"
            ),
        ),
        ("tests/core/process/test_task_end.py::test_a_task_that_swallows_cancellations_ends",),
    ),
)

_ADAPTERS = "tests/workers/engine/test_adapters.py::"
ADAPTERS = (
    Mutation(
        "adapters-share-blocks",
        "a prompt finds the blocks that another adapter has computed",
        (
            Change(
                "workers/engine/sequences/sequence.py",
                "first_parent(self.request.cache_salt, self.request.adapter)",
                "first_parent(self.request.cache_salt)",
            ),
        ),
        (_ADAPTERS + "test_one_prompt_is_computed_once_for_each_adapter",),
    ),
    Mutation(
        "other-adapter-read",
        "D reads blocks of an adapter and goes on with another one",
        (
            Change(
                "workers/engine/scheduling/validation.py",
                "    if remote.adapter != request.adapter:\n",
                "    if False:\n",
            ),
        ),
        (_ADAPTERS + "test_blocks_of_another_adapter_are_not_read",),
    ),
    Mutation(
        "other-adapter-taken-over",
        "a lease of this engine's own is taken over by a sequence of another adapter",
        (
            Change(
                "workers/engine/scheduling/local_handoff.py",
                "            and grant.adapter == seq.request.adapter\n",
                "",
            ),
        ),
        (_ADAPTERS + "test_a_lease_of_another_adapter_is_not_taken_over",),
    ),
    Mutation(
        "other-adapter-paired",
        "the router has a D read the blocks of another adapter that has the same name",
        (
            Change(
                "router/pool/kind.py",
                "        if source.adapter_of(model) != reader.adapter_of(model):\n",
                "        if False:\n",
            ),
        ),
        ("tests/router/pool/test_adapters.py::test_p_and_d_need_the_same_adapter_under_the_name",),
    ),
    Mutation(
        "adapter-for-all-rows",
        "an adapter adds to the rows of others, and its load does not compare them",
        (
            Change(
                "workers/rank/adapters/low_rank.py",
                "into[tokens].addmm_(hidden, factors.up)",
                "into.add_(hidden @ factors.up)",
            ),
            Change(
                "workers/rank/adapters/low_rank.py",
                "hidden = rows[tokens] @ factors.down",
                "hidden = rows @ factors.down",
            ),
            Change("workers/rank/loading/model.py", "    prove_adapters(module, shape, loaded, own, kernel)\n", ""),
        ),
        ("tests/workers/rank/adapters/test_adapted_generation.py::test_rows_of_the_model_keep_every_bit",),
    ),
)

MUTATIONS = (*FENCE, *READS, *LEASES, *ROUTER, *ADAPTERS)
