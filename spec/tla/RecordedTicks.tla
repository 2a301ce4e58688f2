---------------------------- MODULE RecordedTicks ----------------------------
(* Checks whether recorded ticks are a behaviour of the commit protocol.

The input is a trace for some of the ticks: its events, in order. A step is one of these events, or a step that no trace
shows. A store carries out an append, a tick recovers before its trace begins, or a command holds the job. TLC looks for
a way through all events. The slot of a process is its generation, so each process runs once. *)
EXTENDS CommitProtocol, TLC

CONSTANTS
    Observed,   \* generation -> its events, in order
    Told,       \* generation -> ids of the entries that its trace names
    Upto,       \* generation -> the highest id that it is known to have handed out
    Cutoff,     \* generations whose trace has no end: killed ticks
    Known,      \* ids of entries that later traces found -> their kind, and the tables that they changed
    Does        \* generations without a trace -> what they may have been: a tick, a command

VARIABLE seen   \* generation -> how many of its events have been seen

Job == "a"
Me(g) == <<Job, g>>
Traced == DOMAIN Observed
More(g) == g \in Traced /\ seen[g] < Len(Observed[g])
Event(g) == Observed[g][seen[g] + 1]
Begun(g) == seen[g] > 0

\* A tick has claimed the job and recovered: its trace begins.
Started(p, e) ==
    LET me == proc[p] IN
    /\ me.pc = "running" /\ me.at = e.version /\ me.next = e.first /\ me.last = e.last /\ me.parent = e.parent
    /\ {r.id : r \in Rows(Job, me.at)} = e.ids
    /\ e.parent # 0 => (e.parent \in CutIds(Job) /\ \A t \in Tables : CutOf(Job, e.parent)[t] = e.versions[t])
    /\ UNCHANGED vars

\* The next event of a process, as a step of the specification with the event's values.
Seen(p, e) ==
    LET me == proc[p]
        then == proc'[p]
    IN CASE e.is = "started" -> Started(p, e)
         [] e.is = "append" -> /\ me.pc = "pending" /\ me.row.id = e.id /\ me.row.kind = e.kind
                               /\ me.parent = e.parent /\ me.at = e.version
                               /\ Commit(p)
                               /\ then.sent.touched = e.touched /\ then.sent.drops = e.ids
         [] e.is = "reserve" -> Reserve(p) /\ then.sent.first = e.first /\ then.sent.version = e.version + 1
         [] e.is = "appended" -> me.sent.version = e.version /\ me.sent.id = e.id /\ (Appended(p) \/ Reserved(p))
         [] e.is = "refused" -> me.sent.id = e.id /\ Fenced(p)
         [] e.is = "unknown" -> me.sent.id = e.id /\ InDoubt(p)
         [] e.is = "published" -> /\ me.row.id = e.id /\ e.table \in me.todo
                                  /\ Publish(p, e.table)
                                  /\ then.versions[e.table] = e.version
         [] e.is = "unpublished" -> me.pc = "publishing" /\ me.row.id = e.id /\ InDoubt(p)
         [] e.is = "cut" -> /\ me.row.id = e.id /\ \A t \in Tables : me.versions[t] = e.versions[t]
                            /\ RecordCut(p)
         [] e.is = "complete" -> e.id \in recorded[Job] /\ UNCHANGED vars
         [] e.is = "saved" -> Entry(Job, e.id) # Blank /\ UNCHANGED vars
         [] e.is = "ended" -> IF me.pc = "running" THEN EndTick(p) ELSE me.pc \in {"ending", "off"} /\ UNCHANGED vars

Observe(g) ==
    /\ More(g)
    /\ Seen(Me(g), Event(g))
    /\ seen' = [seen EXCEPT ![g] = @ + 1]
    /\ PrintT(<<"seen", g, seen[g] + 1>>)

\* A process claims the generation that is its slot, once. Its trace says at which version the claim lies. Before that,
\* processes that released the job have left, and processes whose trace has ended are dead. Both could also happen
\* later, and nobody would see the difference.
Claims(g, works) ==
    /\ \A h \in 1..(g - 1) :
        /\ ~(proc[Me(h)].pc = "releasing" /\ In(Me(h)))
        /\ (h \notin Traced \/ (h \in Cutoff /\ ~More(h))) => proc[Me(h)].pc = "off" /\ \A r \in net : r.by # Me(h)
    /\ NewestClaim(Job, Version(Job)).gen + 1 = g
    /\ g \in Traced => Observed[g][1].version = Version(Job) + 1
    /\ \E work \in works : Claim(Me(g), work)

\* Nobody sees the order of publications without a trace, so one order is enough.
PublishesUntold(p) == proc[p].todo # {} /\ Publish(p, CHOOSE t \in proc[p].todo : TRUE)

\* The steps of a traced tick before its trace begins.
Recovers(p) == ClaimIsIn(p) \/ PublishesUntold(p) \/ LookAtCuts(p) \/ RecordCut(p) \/ DiscardLeftovers(p)

\* A trace has no triggers. The next entry shows its own trigger, and those of failed checkpoints before it.
Triggers(g) ==
    LET p == Me(g)
        e == Event(g)
        next == proc[p].next
    IN \/ More(g) /\ e.is = "append" /\ e.id = next /\ Trigger(p, e.kind, e.touched)
       \/ next <= Upto[g] /\ next \notin Told[g] /\ Trigger(p, "checkpoint", {})
       \/ proc[p].pc = "pending" /\ proc[p].row.id \notin Told[g] /\ Abort(p)

\* The same, if no trace shows the next entry either.
TriggersUntold(p) ==
    LET next == proc[p].next IN
    /\ next <= Upto[p[2]]
    /\ IF next \in DOMAIN Known THEN Trigger(p, Known[next].kind, Known[next].touched)
       ELSE \E touch \in Touches : Trigger(p, "checkpoint", touch)

\* A process without a trace acts only until another one takes the job over. Then it counts as dead, because its later
\* steps change nothing that others see.
Untold(g) ==
    LET p == Me(g) IN
    \/ /\ NewestClaim(Job, Version(Job)).gen <= g
       /\ \/ IF proc[p].pc = "publishing" THEN PublishesUntold(p) \/ LookAtCuts(p) ELSE Progress(p)
          \/ TriggersUntold(p)
          \/ proc[p].row.id \notin DOMAIN Known /\ Abort(p)
    \/ NewestClaim(Job, Version(Job)).gen >= g /\ (Crash(p) \/ \E r \in net : r.by = p /\ Lose(r))

Unseen(g) ==
    LET p == Me(g) IN
    IF g \notin Traced THEN Claims(g, Does[g]) \/ Untold(g)
    ELSE IF ~Begun(g) THEN Claims(g, {"tick"}) \/ Recovers(p)
    ELSE IF More(g) THEN Triggers(g) \/ LookAtCuts(p)
    ELSE IF g \in Cutoff THEN Untold(g)
    ELSE Triggers(g) \/ Release(p) \/ Leave(p) \/ (g + 1 \in Slots \ Traced /\ Crash(p))

Hidden == UNCHANGED seen /\ ((\E r \in net : Land(r)) \/ \E g \in Slots : Unseen(g))

TraceInit == Init /\ seen = [g \in Slots |-> 0]
TraceSpec == TraceInit /\ [][Hidden \/ \E g \in Slots : Observe(g)]_<<vars, seen>>

\* If the log is too long for the claim of a later trace, TLC gives this behaviour up.
Fits == \A g \in Traced : NewestClaim(Job, Version(Job)).gen < g => Version(Job) < Observed[g][1].version

\* The traces are accepted if a behaviour shows all of their events. That behaviour reaches a state that breaks this.
NotAccepted == \E g \in Slots : More(g)
=============================================================================
