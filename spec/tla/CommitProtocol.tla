--------------------------- MODULE CommitProtocol ---------------------------
(* Specifies how ticks and commands commit, publish, recover and clean up, at the same time and after crashes.

A job has a log of entries (the table `checkpoints`), a log for each output table, recorded cuts, and staged files. A
process is a tick or a command. It claims the job, acts, and releases it. It may crash at any step, and it may be taken
over and go on acting. Each step of this module is one step that the outside can see: one look at a store, or one
commit to it. The comment "models:" above an action names the functions that it stands for.

The budgets (Epochs, Crashes, ...) bound how often something happens in a job, so that every behaviour ends. *)
EXTENDS Naturals, FiniteSets, Sequences

CONSTANTS
    Jobs, Slots,          \* a job has as many processes at a time as there are slots
    Appends, Upserts,     \* names of output tables, by mode
    Touches,              \* sets of tables that an epoch may change
    Kinds,                \* what a tick may take: "checkpoint", "savepoint" (plain), "stop" (a stop's savepoint)
    Retain, IdsPerClaim,
    Ticks, Epochs, Aborts, Crashes, TakeOvers, Doubts, Cleanups, Rollbacks, Rests, Disposals

VARIABLES
    log,        \* job -> entries of `checkpoints`, each with its version
    tables,     \* job -> table -> its publications, oldest first: the checkpoint shown, the files that are active
    cuts,       \* job -> recorded cuts: checkpoint, version of each table
    files,      \* job -> staged files that exist: <<table, generation, epoch>>
    net,        \* appends on their way: a store may carry one out after its sender has died
    proc,       \* process -> the step that it takes next, and what it remembers
    left,       \* job -> what is left of the budgets
    handed,     \* job -> <<generation, id>> of every checkpoint that was triggered
    ended,      \* job -> ids of aborted checkpoints, and of those whose outcome their tick did not know
    recorded    \* job -> ids of all checkpoints whose cut was ever recorded

vars == <<log, tables, cuts, files, net, proc, left, handed, ended, recorded>>

Tables == Appends \cup Upserts
Procs == Jobs \X Slots
Committing == {"checkpoint", "stop", "rollback"}
Pinned == {"savepoint", "stop"}
Waiting == {"claiming", "reserving", "appending", "releasing"}

Max(S) == CHOOSE x \in S : \A y \in S : y <= x
Of(S, t) == {f \in S : f[1] = t}

Blank == [by |-> <<>>, kind |-> "", gen |-> 0, version |-> 0, first |-> 0, last |-> 0, id |-> 0, parent |-> 0,
          touched |-> {}, adds |-> {}, removes |-> {}, content |-> {}, drops |-> {}]
Off == [pc |-> "off", work |-> "", gen |-> 0, at |-> 0, next |-> 0, last |-> 0, parent |-> 0, staged |-> {},
        row |-> Blank, sent |-> Blank, todo |-> {}, versions |-> [t \in Tables |-> 0], look |-> {}, going |-> {}]
Budget == [ticks |-> Ticks, epochs |-> Epochs, aborts |-> Aborts, crashes |-> Crashes, takeovers |-> TakeOvers,
           doubts |-> Doubts, cleanups |-> Cleanups, rollbacks |-> Rollbacks, rests |-> Rests,
           disposals |-> Disposals]

Init ==
    /\ log = [j \in Jobs |-> {}]
    /\ tables = [j \in Jobs |-> [t \in Tables |-> <<>>]]
    /\ cuts = [j \in Jobs |-> {}]
    /\ files = [j \in Jobs |-> {}]
    /\ net = {}
    /\ proc = [p \in Procs |-> Off]
    /\ left = [j \in Jobs |-> Budget]
    /\ handed = [j \in Jobs |-> {}]
    /\ ended = [j \in Jobs |-> {}]
    /\ recorded = [j \in Jobs |-> {}]

------------------------------------------------------------------------------
(* Reading the stores. `v` is the version of `checkpoints` that a process looks at. *)

Version(j) == Max({0} \cup {e.version : e \in log[j]})
Dropped(j, v) == UNION {e.drops : e \in {f \in log[j] : f.version <= v}}
\* The entries of checkpoints and savepoints that are retained.
Rows(j, v) == {e \in log[j] : e.version <= v /\ e.id > 0 /\ e.id \notin Dropped(j, v)}
Last(S) == IF S = {} THEN Blank ELSE CHOOSE e \in S : \A f \in S : f.version <= e.version
\* models: checkpointing.commit.fencing.newest_checkpoint
Newest(j, v) == Last({e \in Rows(j, v) : e.kind \in Committing})
\* models: checkpointing.commit.fencing.newest_claim
NewestClaim(j, v) == Last({e \in log[j] : e.kind = "claim" /\ e.version <= v})
\* models: checkpointing.commit.fencing.release_of
ReleaseOf(j, v, gen) == Last({e \in log[j] : e.kind = "release" /\ e.gen = gen /\ e.version <= v})
Entry(j, id) == Last({e \in log[j] : e.id = id})
CutIds(j) == {c.id : c \in cuts[j]}
CutOf(j, id) == IF id \in CutIds(j) THEN (CHOOSE c \in cuts[j] : c.id = id).versions ELSE [t \in Tables |-> 0]
Shown(j, t) == IF tables[j][t] = <<>> THEN 0 ELSE tables[j][t][Len(tables[j][t])].id
At(j, t, version) == IF version = 0 THEN {} ELSE tables[j][t][version].content
Active(j, t) == At(j, t, Len(tables[j][t]))
Alive(claim) == proc[claim.by].pc # "off" /\ proc[claim.by].gen = claim.gen

\* models: checkpointing.commit.cleanup.readable_cuts
Readable(rows, ids) ==
    ids \cap ({e.id : e \in rows} \cup {e.parent : e \in {f \in rows : f.kind \notin Committing \/ f.id \notin ids}})

\* The files that an entry itself names. The earlier files of an append table are in the table's log.
\* models: checkpointing.metadata.files.files_of
Named(e) == e.adds \cup {f \in e.content : f[1] \in Upserts}

\* An entry and its ancestors.
RECURSIVE Line(_, _)
Line(j, id) == IF id = 0 THEN {} ELSE {id} \cup Line(j, Entry(j, id).parent)

------------------------------------------------------------------------------
(* Steps of the stores. *)

Spend(j, what) == left' = [left EXCEPT ![j] = [k \in DOMAIN @ |-> IF k \in what THEN @[k] - 1 ELSE @[k]]]
Affords(j, what) == \A k \in what : left[j][k] > 0
Becomes(p, state) == proc' = [proc EXCEPT ![p] = state]

\* A process sends an append: `e` shall follow the version that the process saw.
Send(p, me, pc, e) ==
    LET sent == [e EXCEPT !.by = p, !.gen = me.gen, !.version = me.at + 1] IN
    /\ net' = net \cup {sent}
    /\ Becomes(p, [me EXCEPT !.pc = pc, !.sent = sent])

In(p) == proc[p].sent \in log[p[1]]
Taken(p) == ~In(p) /\ \E e \in log[p[1]] : e.version = proc[p].sent.version

\* The store carries out an append as a compare-and-swap, perhaps long after its sender has stopped waiting.
\* models: jobs.warehouse.checkpoints.CheckpointStore.append
Land(r) ==
    LET j == r.by[1] IN
    /\ r \in net
    /\ net' = net \ {r}
    /\ log' = IF r.version = Version(j) + 1 THEN [log EXCEPT ![j] = @ \cup {r}] ELSE log
    /\ UNCHANGED <<tables, cuts, files, proc, left, handed, ended, recorded>>

\* An append gets lost. Its sender no longer waits for it.
Lose(r) ==
    /\ r \in net
    /\ ~(proc[r.by].pc \in Waiting /\ proc[r.by].sent = r)
    /\ net' = net \ {r}
    /\ UNCHANGED <<log, tables, cuts, files, proc, left, handed, ended, recorded>>

------------------------------------------------------------------------------
(* Holding the job. *)

NeedsRecovery(j) ==
    LET v == Version(j)
        c == NewestClaim(j, v)
        n == Newest(j, v)
        free == ReleaseOf(j, v, c.gen) # Blank
    IN  c # Blank /\ ((~free /\ ~Alive(c)) \/ (free /\ n # Blank /\ n.id \notin CutIds(j)))

Price(j, work) ==
    CASE work = "tick" -> IF NeedsRecovery(j) THEN {} ELSE {"ticks"}
      [] work = "rollback" -> {"rollbacks"}
      [] work = "rest" -> {"rests"}
      [] work = "clean" -> {"cleanups"}
      [] work = "dispose" -> {"disposals"}

\* Observe, decide, and send the claim. A claim may replace a living holder if its lease has run out or a user says so.
\* models: jobs.warehouse.job_stores.JobStores.observe
\* models: checkpointing.commit.recovery.decide_recovery
\* models: checkpointing.commit.fencing.decide_claim
\* models: checkpointing.tick.door.Claiming.claimed
Claim(p, work) ==
    LET j == p[1]
        v == Version(j)
        c == NewestClaim(j, v)
        release == ReleaseOf(j, v, c.gen)
        n == Newest(j, v)
        alive == c # Blank /\ release = Blank /\ Alive(c)
        price == IF alive THEN {"takeovers"} ELSE Price(j, work)
        first == IF c = Blank THEN 1 ELSE IF release # Blank THEN release.first ELSE c.last + 1
        pending == IF n # Blank /\ n.id \notin CutIds(j) THEN n ELSE Blank
        me == [Off EXCEPT !.work = work, !.gen = c.gen + 1, !.at = v, !.row = pending, !.parent = n.id]
    IN
    /\ proc[p].pc = "off" /\ (\A r \in net : r.by # p)
    /\ alive => work = "tick"
    /\ Affords(j, price) /\ Spend(j, price)
    /\ work \in {"rollback", "rest", "dispose"} => n # Blank
    /\ Send(p, me, "claiming", [Blank EXCEPT !.kind = "claim", !.first = first, !.last = first + IdsPerClaim - 1])
    /\ UNCHANGED <<log, tables, cuts, files, handed, ended, recorded>>

\* models: checkpointing.tick.door.Claiming.claimed
ClaimIsIn(p) ==
    LET me == proc[p]
        pc == CASE me.work \in {"tick", "rollback"} -> IF me.row # Blank THEN "publishing" ELSE "leftovers"
                [] me.work = "rest" -> IF me.row # Blank THEN "publishing" ELSE "planning"
                [] me.work = "clean" -> "dropping"
                [] me.work = "dispose" -> IF me.row # Blank THEN "publishing" ELSE "disposing"
    IN
    /\ me.pc = "claiming" /\ In(p)
    /\ Becomes(p, [me EXCEPT !.pc = pc, !.at = me.sent.version, !.next = me.sent.first, !.last = me.sent.last,
                             !.sent = Blank, !.todo = me.row.touched, !.versions = CutOf(p[1], me.row.parent)])
    /\ UNCHANGED <<log, tables, cuts, files, net, left, handed, ended, recorded>>

\* Another process's entry came first. The claim or the tick ends. It has changed nothing since.
\* models: checkpointing.tick.door.Claiming.claimed
\* models: checkpointing.commit.two_phase.TwoPhaseCommit.step
Fenced(p) ==
    LET j == p[1] IN
    /\ proc[p].pc \in {"claiming", "reserving", "appending"} /\ Taken(p)
    /\ Becomes(p, Off)
    /\ ended' = [ended EXCEPT ![j] = @ \cup ({proc[p].sent.id} \ {0})]
    /\ UNCHANGED <<log, tables, cuts, files, net, left, handed, recorded>>

\* The tick does not know whether its entry is in, because the reply is lost or reading back fails. Or it cannot write a
\* table or the cut of a committed entry. In each case the tick ends, and the next one finds out.
\* models: checkpointing.commit.two_phase.TwoPhaseCommit.step
\* models: checkpointing.tick.door.Holding._released
InDoubt(p) ==
    LET j == p[1] IN
    /\ proc[p].pc \in Waiting \cup {"publishing", "recording"}
    /\ Affords(j, {"doubts"}) /\ Spend(j, {"doubts"})
    /\ Becomes(p, IF proc[p].pc \in {"claiming", "releasing"} THEN Off
                  ELSE [proc[p] EXCEPT !.pc = "ending", !.sent = Blank, !.row = Blank, !.look = {}])
    /\ ended' = [ended EXCEPT ![j] = @ \cup ({proc[p].sent.id} \ {0})]
    /\ UNCHANGED <<log, tables, cuts, files, net, handed, recorded>>

\* A tick that has used up its ids claims a further block.
\* models: checkpointing.commit.two_phase.TwoPhaseCommit.reserve
Reserve(p) ==
    /\ proc[p].pc = "running" /\ proc[p].next > proc[p].last /\ left[p[1]].epochs > 0
    /\ Send(p, proc[p], "reserving", [Blank EXCEPT !.kind = "claim", !.first = proc[p].last + 1,
                                                   !.last = proc[p].last + IdsPerClaim])
    /\ UNCHANGED <<log, tables, cuts, files, left, handed, ended, recorded>>

\* models: checkpointing.commit.two_phase.TwoPhaseCommit.step
Reserved(p) ==
    LET me == proc[p] IN
    /\ me.pc = "reserving" /\ In(p)
    /\ Becomes(p, [me EXCEPT !.pc = "running", !.at = me.sent.version, !.last = me.sent.last, !.sent = Blank])
    /\ UNCHANGED <<log, tables, cuts, files, net, left, handed, ended, recorded>>

\* models: checkpointing.tick.door.Holding._released
Release(p) ==
    LET me == proc[p] IN
    /\ me.pc = "ending"
    /\ Send(p, me, "releasing", [Blank EXCEPT !.kind = "release", !.first = me.next, !.drops = me.going])
    /\ UNCHANGED <<log, tables, cuts, files, left, handed, ended, recorded>>

\* The release is in. Or another process took over, or an own entry of unknown outcome came in before the release.
\* models: checkpointing.tick.door.Holding._released
Leave(p) ==
    LET me == proc[p]
        v == Version(p[1])
    IN
    /\ me.pc = "releasing" /\ (In(p) \/ Taken(p))
    /\ Becomes(p, IF Taken(p) /\ NewestClaim(p[1], v).gen = me.gen
                  THEN [me EXCEPT !.pc = "ending", !.at = v, !.sent = Blank]
                  ELSE IF In(p) /\ me.going # {} THEN [me EXCEPT !.pc = "deleting", !.sent = Blank] ELSE Off)
    /\ UNCHANGED <<log, tables, cuts, files, net, left, handed, ended, recorded>>

\* The process dies. A store may still carry out what it sent.
Crash(p) ==
    LET j == p[1] IN
    /\ proc[p].pc # "off"
    /\ Affords(j, {"crashes"}) /\ Spend(j, {"crashes"})
    /\ Becomes(p, Off)
    /\ UNCHANGED <<log, tables, cuts, files, net, handed, ended, recorded>>

------------------------------------------------------------------------------
(* A checkpoint, from its trigger to its cut. The same steps roll an older tick's entry forward. *)

\* Take the next id, and stage an epoch's files for some of the tables.
\* models: checkpointing.job.tick_end.CheckpointIds.take
\* models: jobs.sinks.staged_files.StagedFiles.write
Trigger(p, kind, touch) ==
    LET j == p[1]
        me == proc[p]
        staged == {<<t, me.gen, me.next>> : t \in touch}
    IN
    /\ me.pc = "running" /\ me.next <= me.last
    /\ Affords(j, {"epochs"}) /\ Spend(j, {"epochs"})
    /\ files' = [files EXCEPT ![j] = @ \cup staged]
    /\ handed' = [handed EXCEPT ![j] = @ \cup {<<me.gen, me.next>>}]
    /\ Becomes(p, [me EXCEPT !.pc = "pending", !.next = me.next + 1, !.staged = @ \cup staged,
                             !.row = [Blank EXCEPT !.kind = kind, !.id = me.next]])
    /\ UNCHANGED <<log, tables, cuts, net, ended, recorded>>

\* A checkpoint that fails deletes nothing. The next one contains its files.
\* models: checkpointing.commit.two_phase.TwoPhaseCommit.withdraw
Abort(p) ==
    LET j == p[1] IN
    /\ proc[p].pc = "pending"
    /\ Affords(j, {"aborts"}) /\ Spend(j, {"aborts"})
    /\ ended' = [ended EXCEPT ![j] = @ \cup {proc[p].row.id}]
    /\ Becomes(p, [proc[p] EXCEPT !.pc = "running", !.row = Blank])
    /\ UNCHANGED <<log, tables, cuts, files, net, handed, recorded>>

\* The files of a table at a cut with these staged files, if it had the files `was` at the cut before.
\* models: checkpointing.commit.net_files.net_tables
Next_content(was, staged) ==
    LET newest(t) == Max({f[3] : f \in Of(staged, t)}) IN
    UNION {IF t \in Appends \/ Of(staged, t) = {} THEN Of(was, t) \cup Of(staged, t)
           ELSE {f \in Of(staged, t) : f[3] = newest(t)} : t \in Tables}

\* The entries after which an existing plain savepoint was taken. They stay as long as the savepoint.
\* models: checkpointing.commit.fencing.stood_upon
StoodUpon(rows) == {e.parent : e \in {r \in rows : r.kind = "savepoint"}}

\* models: checkpointing.coordinator.completed.subsume
Subsumed(j, v) ==
    LET old == {e \in Rows(j, v) : e.kind \in {"checkpoint", "rollback"}} IN
    {e.id : e \in {f \in old : Cardinality({g \in old : g.version > f.version}) >= Retain - 1}}
        \ StoodUpon(Rows(j, v))

\* All subtasks have acknowledged: compose the entry and send it. Its append is the commit point.
\* models: checkpointing.commit.two_phase.TwoPhaseCommit.offer
Commit(p) ==
    LET j == p[1]
        me == proc[p]
        was == Entry(j, me.parent).content
        content == Next_content(was, me.staged)
        row == [me.row EXCEPT !.parent = me.parent, !.content = content, !.adds = content \ was,
                              !.touched = {t \in Tables : Of(content, t) # Of(was, t)},
                              !.drops = IF me.row.kind \in {"checkpoint", "rollback"} THEN Subsumed(j, me.at) ELSE {}]
    IN
    /\ me.pc = "pending"
    /\ Send(p, me, "appending", row)
    /\ UNCHANGED <<log, tables, cuts, files, left, handed, ended, recorded>>

\* Committed. A plain savepoint publishes nothing.
\* models: checkpointing.commit.two_phase.TwoPhaseCommit.step
Appended(p) ==
    LET me == proc[p]
        on == [me EXCEPT !.at = me.sent.version, !.sent = Blank]
    IN
    /\ me.pc = "appending" /\ In(p)
    /\ Becomes(p, IF me.sent.kind = "savepoint"
                  THEN [on EXCEPT !.pc = IF me.work = "rest" THEN "ending" ELSE "running", !.row = Blank]
                  ELSE [on EXCEPT !.pc = "publishing", !.row = me.sent, !.todo = me.sent.touched, !.staged = {},
                                  !.parent = me.sent.id, !.versions = CutOf(p[1], me.parent)])
    /\ UNCHANGED <<log, tables, cuts, files, net, left, handed, ended, recorded>>

\* Enter the entry's files into one table's log, unless the table shows it already. This is a compare-and-swap too.
\* models: jobs.warehouse.publisher.Publisher.publish
\* models: checkpointing.tick.door.rolled_forward
Publish(p, t) ==
    LET j == p[1]
        me == proc[p]
        there == tables[j][t]
        active == IF t \in Appends THEN (Active(j, t) \cup Of(me.row.adds, t)) \ me.row.removes
                  ELSE Of(me.row.content, t)
        done(version) == [me EXCEPT !.todo = @ \ {t}, !.versions = [@ EXCEPT ![t] = version]]
    IN
    /\ me.pc = "publishing" /\ t \in me.todo
    /\ IF Shown(j, t) >= me.row.id
       THEN /\ Becomes(p, done(CHOOSE i \in DOMAIN there :
                                   there[i].id >= me.row.id /\ \A k \in 1..(i - 1) : there[k].id < me.row.id))
            /\ UNCHANGED tables
       ELSE /\ tables' = [tables EXCEPT ![j][t] = Append(@, [id |-> me.row.id, content |-> active])]
            /\ Becomes(p, done(Len(there) + 1))
    /\ UNCHANGED <<log, cuts, files, net, left, handed, ended, recorded>>

\* All tables show the checkpoint. Look which cuts nobody can ask for any more.
\* models: jobs.warehouse.job_stores.JobCuts.record
LookAtCuts(p) ==
    LET j == p[1]
        rows == Rows(j, Version(j))
    IN
    /\ proc[p].pc = "publishing" /\ proc[p].todo = {}
    /\ Becomes(p, [proc[p] EXCEPT !.pc = "recording",
                   !.look = {e.id : e \in rows} \cup {e.parent : e \in {f \in rows : f.kind \notin Committing}}])
    /\ UNCHANGED <<log, tables, cuts, files, net, left, handed, ended, recorded>>

\* Record the cut, and drop the others that were not retained at that look. If a newer cut is recorded, another process
\* has taken over since. Then this process knows only old entries, and changes nothing.
\* models: jobs.warehouse.cuts_table.CutStore.record
RecordCut(p) ==
    LET j == p[1]
        me == proc[p]
        cut == [id |-> me.row.id, versions |-> me.versions]
        then == IF me.row.gen # me.gen
                THEN CASE me.work = "dispose" -> "disposing" [] me.work = "rest" -> "planning" [] OTHER -> "leftovers"
                ELSE IF me.row.kind = "checkpoint" THEN "running" ELSE "ending"
    IN
    /\ me.pc = "recording"
    /\ cuts' = IF \E id \in CutIds(j) : id >= cut.id THEN cuts
               ELSE [cuts EXCEPT ![j] = {c \in @ : c.id \in me.look} \cup {cut}]
    /\ recorded' = [recorded EXCEPT ![j] = @ \cup {cut.id}]
    /\ Becomes(p, [me EXCEPT !.pc = then, !.row = Blank, !.look = {}])
    /\ UNCHANGED <<log, tables, files, net, left, handed, ended>>

\* Delete the files that older generations staged and that no entry can name. The process read the entries at its claim.
\* models: checkpointing.commit.cleanup.is_unreferenced
\* models: checkpointing.tick.door.discarded
DiscardLeftovers(p) ==
    LET j == p[1]
        me == proc[p]
        rows == Rows(j, me.at)
        n == Newest(j, me.at)
        pinned == UNION {Named(e) : e \in {r \in rows : r.kind \in Pinned}}
        counter == IF n.kind = "rollback" THEN 0 ELSE n.id
        unused == {f \in files[j] : /\ f \notin pinned /\ f[2] < me.gen
                                    /\ (f[2] > n.gen \/ (f[2] = n.gen /\ f[3] > counter))}
    IN
    /\ me.pc = "leftovers"
    /\ files' = [files EXCEPT ![j] = @ \ unused]
    /\ Becomes(p, [me EXCEPT !.pc = IF me.work = "tick" THEN "running" ELSE "planning"])
    /\ UNCHANGED <<log, tables, cuts, net, left, handed, ended, recorded>>

\* The tick has nothing more to do, or a user stops it.
\* models: jobs.tick.tick.run_tick
EndTick(p) ==
    /\ proc[p].pc = "running"
    /\ Becomes(p, [proc[p] EXCEPT !.pc = "ending"])
    /\ UNCHANGED <<log, tables, cuts, files, net, left, handed, ended, recorded>>

------------------------------------------------------------------------------
(* Commands at rest: a savepoint of the newest cut, a rollback, the end of a savepoint. *)

\* models: jobs.tick.at_rest.take_savepoint.savepoint_at_rest
SaveAtRest(p) ==
    LET j == p[1]
        me == proc[p]
        n == Entry(j, me.parent)
    IN
    /\ me.pc = "planning" /\ me.work = "rest"
    /\ handed' = [handed EXCEPT ![j] = @ \cup {<<me.gen, me.next>>}]
    /\ Send(p, [me EXCEPT !.next = @ + 1], "appending",
            [Blank EXCEPT !.kind = "savepoint", !.id = me.next, !.parent = n.id, !.content = n.content])
    /\ UNCHANGED <<log, tables, cuts, files, left, ended, recorded>>

\* Go back to a retained entry: append its cut under a new id. Entries off the line leave in the same commit.
\* models: jobs.tick.at_rest.roll_back.roll_back
\* models: jobs.tick.rollback_plan.plan_rollback
\* models: checkpointing.commit.fencing.turn_back
RollBack(p, to) ==
    LET j == p[1]
        me == proc[p]
        rows == Rows(j, me.at)
        now == Newest(j, me.at).content
        line == Line(j, to.id)
    IN
    /\ me.pc = "planning" /\ me.work = "rollback" /\ to \in rows
    /\ handed' = [handed EXCEPT ![j] = @ \cup {<<me.gen, me.next>>}]
    /\ Send(p, [me EXCEPT !.next = @ + 1], "appending",
            [Blank EXCEPT !.kind = "rollback", !.id = me.next, !.parent = to.id, !.content = to.content,
                          !.touched = Tables, !.adds = to.content \ now,
                          !.removes = {f \in now \ to.content : f[1] \in Appends},
                          !.drops = {e.id : e \in {r \in rows : r.kind \notin Pinned
                                                            /\ r.id \notin line \cup StoodUpon(rows)}}])
    /\ UNCHANGED <<log, tables, cuts, files, left, ended, recorded>>

\* The release removes the entry of a savepoint. Afterwards the process deletes the state files that only it named.
\* models: jobs.tick.at_rest.take_savepoint.dispose
Dispose(p, e) ==
    LET j == p[1]
        rows == Rows(j, proc[p].at)
        line == Line(j, Newest(j, proc[p].at).id)
        alone == {r \in rows : r.id \in StoodUpon({e}) \ (StoodUpon(rows \ {e}) \cup line) /\ r.kind \notin Pinned}
        gone == {e} \cup alone
    IN
    /\ proc[p].pc = "disposing"
    /\ e \in rows /\ e.kind \in Pinned /\ e # Newest(j, proc[p].at) /\ e.id \notin StoodUpon(rows)
    /\ Becomes(p, [proc[p] EXCEPT !.pc = "ending", !.going = {r.id : r \in gone},
                   !.look = {f \in UNION {Named(r) : r \in gone} : f[1] \in Upserts}
                                \ UNION {Named(r) : r \in rows \ gone}])
    /\ UNCHANGED <<log, tables, cuts, files, net, left, handed, ended, recorded>>

\* No savepoint can be disposed of.
\* models: jobs.tick.at_rest.take_savepoint.dispose
NothingToDispose(p) ==
    /\ proc[p].pc = "disposing"
    /\ ~\E e \in Rows(p[1], proc[p].at) : e.kind \in Pinned /\ e # Newest(p[1], proc[p].at)
                                            /\ e.id \notin StoodUpon(Rows(p[1], proc[p].at))
    /\ Becomes(p, [proc[p] EXCEPT !.pc = "ending"])
    /\ UNCHANGED <<log, tables, cuts, files, net, left, handed, ended, recorded>>

------------------------------------------------------------------------------
(* Clean-up: as a tick's last act, at rest, or beside a tick. *)

\* models: jobs.tick.cleaning.clean_up_after_tick
BeginCleanup(p) ==
    /\ proc[p].pc = "running" /\ proc[p].work = "tick"
    /\ Affords(p[1], {"cleanups"}) /\ Spend(p[1], {"cleanups"})
    /\ Becomes(p, [proc[p] EXCEPT !.pc = "dropping"])
    /\ UNCHANGED <<log, tables, cuts, files, net, handed, ended, recorded>>

\* Drop the cuts that nobody can ask for any more: read the recorded cuts, then the entries, then commit.
\* models: jobs.warehouse.job_stores.JobCuts.drop_unneeded
LookAtOldCuts(p) ==
    /\ proc[p].pc = "dropping"
    /\ Becomes(p, [proc[p] EXCEPT !.pc = "judging cuts", !.look = CutIds(p[1])])
    /\ UNCHANGED <<log, tables, cuts, files, net, left, handed, ended, recorded>>

\* models: jobs.warehouse.job_stores.JobCuts.drop_unneeded
JudgeCuts(p) ==
    LET j == p[1] IN
    /\ proc[p].pc = "judging cuts"
    /\ Becomes(p, [proc[p] EXCEPT !.pc = "dropping cuts", !.look = @ \ Readable(Rows(j, Version(j)), @)])
    /\ UNCHANGED <<log, tables, cuts, files, net, left, handed, ended, recorded>>

\* models: jobs.warehouse.cuts_table.CutStore.drop
DropCuts(p) ==
    /\ proc[p].pc = "dropping cuts"
    /\ cuts' = [cuts EXCEPT ![p[1]] = {c \in @ : c.id \notin proc[p].look}]
    /\ Becomes(p, [proc[p] EXCEPT !.pc = "gathering", !.look = {}])
    /\ UNCHANGED <<log, tables, files, net, left, handed, ended, recorded>>

\* Read the entries first, then the cuts and the tables' logs.
\* models: jobs.warehouse.cleanup.gather
GatherRows(p) ==
    LET j == p[1] IN
    /\ proc[p].pc = "gathering"
    /\ Becomes(p, [proc[p] EXCEPT !.pc = "gathering logs", !.look = Rows(j, Version(j))])
    /\ UNCHANGED <<log, tables, cuts, files, net, left, handed, ended, recorded>>

\* A clean-up beside a tick claims nothing, and does not touch the files that the holder's generation staged.
\* models: jobs.tick.cleaning.clean_up
\* models: jobs.warehouse.cleanup.gather
GatherRowsBeside(p) ==
    LET j == p[1]
        v == Version(j)
        c == NewestClaim(j, v)
    IN
    /\ proc[p].pc = "off" /\ (\A r \in net : r.by # p)
    /\ c # Blank /\ ReleaseOf(j, v, c.gen) = Blank
    /\ Affords(j, {"cleanups"}) /\ Spend(j, {"cleanups"})
    /\ Becomes(p, [Off EXCEPT !.pc = "gathering logs", !.work = "beside", !.gen = c.gen, !.look = Rows(j, v)])
    /\ UNCHANGED <<log, tables, cuts, files, net, handed, ended, recorded>>

\* Choose the files that older generations staged, and that no entry, no cut and no table's newest version needs.
\* models: jobs.warehouse.cleanup.gather
\* models: checkpointing.commit.cleanup.decide_cleanup
GatherLogs(p) ==
    LET j == p[1]
        me == proc[p]
        kept == IF me.work = "beside" THEN CutIds(j) ELSE Readable(me.look, CutIds(j))
        named == UNION {Named(e) : e \in me.look}
        active == UNION {Active(j, t) : t \in Tables}
        cut == UNION {UNION {At(j, t, c.versions[t]) : t \in Tables} : c \in {d \in cuts[j] : d.id \in kept}}
    IN
    /\ me.pc = "gathering logs"
    /\ Becomes(p, [me EXCEPT !.pc = "deleting",
                             !.look = {f \in files[j] : f[2] < me.gen /\ f \notin named \cup active \cup cut}])
    /\ UNCHANGED <<log, tables, cuts, files, net, left, handed, ended, recorded>>

\* models: jobs.warehouse.cleanup.delete_unneeded
\* models: jobs.tick.at_rest.take_savepoint.dispose
DeleteUnneeded(p) ==
    LET j == p[1] IN
    /\ proc[p].pc = "deleting"
    /\ files' = [files EXCEPT ![j] = @ \ proc[p].look]
    /\ Becomes(p, IF proc[p].work \in {"beside", "dispose"} THEN Off ELSE [proc[p] EXCEPT !.pc = "ending", !.look = {}])
    /\ UNCHANGED <<log, tables, cuts, net, left, handed, ended, recorded>>

------------------------------------------------------------------------------
(* The whole system. The steps of processes and stores are fair. Faults, requests and new work are not. *)

Works == {"tick", "rollback", "rest", "clean", "dispose"}

\* The next step of a process. The cases are the values of its `pc`, so TLC tries no other action there.
Progress(p) ==
    CASE proc[p].pc = "off" -> FALSE
      [] proc[p].pc = "claiming" -> ClaimIsIn(p) \/ Fenced(p)
      [] proc[p].pc = "reserving" -> Reserved(p) \/ Fenced(p)
      [] proc[p].pc = "appending" -> Appended(p) \/ Fenced(p)
      [] proc[p].pc = "publishing" -> (\E t \in proc[p].todo : Publish(p, t)) \/ LookAtCuts(p)
      [] proc[p].pc = "recording" -> RecordCut(p)
      [] proc[p].pc = "leftovers" -> DiscardLeftovers(p)
      [] proc[p].pc = "running" -> EndTick(p)
      [] proc[p].pc = "pending" -> Commit(p)
      [] proc[p].pc = "planning" -> SaveAtRest(p) \/ (\E to \in Rows(p[1], proc[p].at) : RollBack(p, to))
      [] proc[p].pc = "disposing" -> NothingToDispose(p) \/ (\E e \in Rows(p[1], proc[p].at) : Dispose(p, e))
      [] proc[p].pc = "dropping" -> LookAtOldCuts(p)
      [] proc[p].pc = "judging cuts" -> JudgeCuts(p)
      [] proc[p].pc = "dropping cuts" -> DropCuts(p)
      [] proc[p].pc = "gathering" -> GatherRows(p)
      [] proc[p].pc = "gathering logs" -> GatherLogs(p)
      [] proc[p].pc = "deleting" -> DeleteUnneeded(p)
      [] proc[p].pc = "ending" -> Release(p)
      [] proc[p].pc = "releasing" -> Leave(p)

\* Faults of a process, and requests of users.
Chance(p) ==
    CASE proc[p].pc = "off" -> (\E work \in Works : Claim(p, work)) \/ GatherRowsBeside(p)
      [] proc[p].pc = "running" -> \/ Crash(p) \/ Reserve(p) \/ BeginCleanup(p)
                                  \/ (\E kind \in Kinds, touch \in Touches : Trigger(p, kind, touch))
      [] proc[p].pc = "pending" -> Crash(p) \/ Abort(p)
      [] OTHER -> Crash(p) \/ InDoubt(p)

Stores == (\E r \in net : Land(r)) \/ (\E r \in net : Lose(r))
Recovery == \E p \in Procs : proc[p].pc = "off" /\ NeedsRecovery(p[1]) /\ Claim(p, "tick")

Next == Stores \/ \E p \in Procs : Progress(p) \/ Chance(p)
System == Stores \/ Recovery \/ \E p \in Procs : Progress(p)

Spec == Init /\ [][Next]_vars
\* As long as a store or a process can go on, or a tick is due, one of them goes on.
FairSpec == Spec /\ WF_vars(System)

------------------------------------------------------------------------------
(* Safety. *)

\* Each version of `checkpoints` has one entry, and no version is missing.
OneEntryPerVersion ==
    \A j \in Jobs : /\ Cardinality({e.version : e \in log[j]}) = Cardinality(log[j])
                    /\ \A e \in log[j] : e.version \in 1..Cardinality(log[j])

\* An older generation appends nothing after a newer claim.
ZombiesCommitNothing ==
    \A j \in Jobs : \A c, e \in log[j] : (c.kind = "claim" /\ c.version < e.version) => c.gen <= e.gen

\* No id is handed out twice, and no two entries have the same id.
IdsAreUsedOnce ==
    \A j \in Jobs :
        /\ \A a, b \in handed[j] : a[2] = b[2] => a = b
        /\ \A a, b \in {e \in log[j] : e.id > 0} : a.id = b.id => a = b
        /\ \A e \in log[j] : e.id > 0 => <<e.gen, e.id>> \in handed[j]

\* The entry from which the next tick begins always exists.
NewestIsRetained ==
    \A j \in Jobs : LET committed == {e \in log[j] : e.kind \in Committing} IN
        committed # {} => Newest(j, Version(j)) = Last(committed)

\* A table's log shows only committed cuts: each once, whole, and in the order of their commits.
TablesShowCommittedCuts ==
    \A j \in Jobs : \A t \in Tables : \A i \in DOMAIN tables[j][t] :
        LET shown == tables[j][t][i]
            e == Entry(j, shown.id)
        IN  /\ e.kind \in Committing
            /\ shown.content = Of(e.content, t)
            /\ i > 1 => tables[j][t][i - 1].id < shown.id

\* Each table shows the newest commit. While a tick publishes that commit, some tables may show the one before.
TablesShowTheNewest ==
    \A j \in Jobs :
        LET committed == {e \in log[j] : e.kind \in Committing}
            n == Last(committed)
            before == Last(committed \ {n})
        IN  \A t \in Tables : Active(j, t) = Of(n.content, t)
                              \/ (n.id \notin recorded[j] /\ Active(j, t) = Of(before.content, t))

\* A reader of all tables by a recorded cut reads exactly one checkpoint.
CutsAreWhole ==
    \A j \in Jobs : \A c \in cuts[j] : \A t \in Tables :
        /\ c.versions[t] <= Len(tables[j][t])
        /\ At(j, t, c.versions[t]) = Of(Entry(j, c.id).content, t)

\* A retained checkpoint's cut stays recorded.
RetainedCutsAreRecorded ==
    \A j \in Jobs : \A e \in Rows(j, Version(j)) :
        (e.kind \in Committing /\ e.id \in recorded[j]) => e.id \in CutIds(j)

\* At most one commit is unpublished. The next one waits for the cut of the one before.
OneUnpublished ==
    \A j \in Jobs : \A e \in log[j] :
        (e.kind \in Committing /\ e # Last({f \in log[j] : f.kind \in Committing})) => e.id \in recorded[j]

\* No file is deleted while a rollback to a retained entry needs it, a table or a readable cut shows it, or the holder
\* of the job has staged it.
FilesStay ==
    \A j \in Jobs :
        LET rows == Rows(j, Version(j))
            readable == Readable(rows, CutIds(j))
            holder == NewestClaim(j, Version(j))
        IN  /\ \A e \in rows : e.content \subseteq files[j]
            /\ \A t \in Tables : Active(j, t) \subseteq files[j]
            /\ \A c \in cuts[j] : c.id \in readable =>
                   \A t \in Tables : At(j, t, c.versions[t]) \subseteq files[j]
            /\ (holder # Blank /\ Alive(holder)) => proc[holder.by].staged \subseteq files[j]

\* A committed entry stays as it is.
EntriesStay == [][\A j \in Jobs : log[j] \subseteq log'[j]]_log

------------------------------------------------------------------------------
(* Liveness. Every behaviour ends, so each of these properties must hold in its last state. *)

\* Every committed checkpoint is published in all tables, and its cut is recorded.
EveryCommitIsPublished ==
    <>[](\A j \in Jobs : \A e \in log[j] : e.kind \in Committing => e.id \in recorded[j])

\* Every trigger ends: its checkpoint is committed or aborted, or its tick has ended.
EveryTriggerEnds ==
    <>[](\A j \in Jobs : \A h \in handed[j] :
            \/ Entry(j, h[2]) # Blank
            \/ h[2] \in ended[j]
            \/ ReleaseOf(j, Version(j), h[1]) # Blank
            \/ NewestClaim(j, Version(j)).gen > h[1])

\* Every claim is settled: it is released, or another process found its holder dead, or another process took over.
EveryClaimIsSettled ==
    <>[](\A j \in Jobs : \A c \in log[j] : c.kind = "claim" =>
            ReleaseOf(j, Version(j), c.gen) # Blank \/ NewestClaim(j, Version(j)).gen > c.gen)
=============================================================================
