-------------------------- MODULE SharedWarehouse --------------------------
(* Two jobs on one warehouse. Neither of them notices the other. *)
EXTENDS CommitProtocol

\* Each job, by itself, behaves like a job that has the warehouse alone.
Only(f, j) == [k \in {j} |-> f[k]]
A == INSTANCE CommitProtocol WITH
    Jobs <- {"a"}, log <- Only(log, "a"), tables <- Only(tables, "a"), cuts <- Only(cuts, "a"),
    files <- Only(files, "a"), net <- {r \in net : r.by[1] = "a"},
    proc <- [p \in {"a"} \X Slots |-> proc[p]], left <- Only(left, "a"), handed <- Only(handed, "a"),
    ended <- Only(ended, "a"), recorded <- Only(recorded, "a")
B == INSTANCE CommitProtocol WITH
    Jobs <- {"b"}, log <- Only(log, "b"), tables <- Only(tables, "b"), cuts <- Only(cuts, "b"),
    files <- Only(files, "b"), net <- {r \in net : r.by[1] = "b"},
    proc <- [p \in {"b"} \X Slots |-> proc[p]], left <- Only(left, "b"), handed <- Only(handed, "b"),
    ended <- Only(ended, "b"), recorded <- Only(recorded, "b")
JobsDoNotDisturb == A!Spec /\ B!Spec
=============================================================================
