------------------------------- MODULE Ledger -------------------------------
(***************************************************************************)
(* One ledger of Quire: its writer with pipelined adds and ensemble change, *)
(* recoverers that fence it and close it, a re-replication worker, bookies  *)
(* and the metadata store. docs/protocol.md explains the protocol in words. *)
(*                                                                         *)
(* What is left out, and why nothing is lost by it:                         *)
(*  - Nobody is ever *down*. Every step is optional, so that a bookie that  *)
(*    is dead, slow or cut off is one that takes no steps. A crash is an    *)
(*    event: the bookie is back without what it had not synced.             *)
(*  - A dead writer, recoverer or worker is one that takes no more steps.   *)
(*  - Acknowledgements have no messages: a bookie that has one on its way   *)
(*    is in `acks`; the writer counts it when it likes, or never.           *)
(*  - Permanent loss of disks is not an event: the invariants ask for       *)
(*    AckQuorum durable copies, so that any AckQuorum-1 disks may go.       *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets, TLC

CONSTANTS
  Bookies, Recoverers,      \* sets of model values
  Spares,                   \* the bookies outside the first ensemble
  Size, WriteQuorum, AckQuorum,
  Entries,                  \* ids are 1 .. Entries
  ChangesMax,               \* ensemble changes that the writer begins
  ReplacementsMax,          \* replacements in memory by one recoverer
  MovesMax,                 \* positions that the worker moves, and copies it repairs in place
  CrashesMax,               \* crashes of bookies; 0 also joins storing and syncing into one step
  UnknownsMax,              \* metadata writes whose outcome stays unknown
  Broken                    \* which rule is left out; "none" is the protocol

VARIABLES
  meta,     \* what the metadata store holds: [state, segments, last, version]
  limbo,    \* writes of unknown outcome that may still happen, while their version fits
  store,    \* store[b][e]: 0, or the copy of e that bookie b holds (see Copy)
  unsynced, \* pairs <<b, e>> that a crash of b takes away
  fenced,   \* bookies that refuse the writer's adds
  acks,     \* pairs <<b, e>>: b stored the writer's e and said so
  writer, rec, worker,
  left      \* what may still go wrong: [changes, moves, crashes, unknowns]

vars == <<meta, limbo, store, unsynced, fenced, acks, writer, rec, worker, left>>

Ids == 1..Entries
Is(variant) == Broken = variant
Max(a, b) == IF a > b THEN a ELSE b

-----------------------------------------------------------------------------
(* Copies carry content and the LAC of their header. The writer's content is 1; 2 is another one under the same id. *)
Copy(content, lac) == 10 * content + lac
Content(copy) == copy \div 10
Lac(copy) == copy % 10

(* An ensemble gives each bookie its position, 0 to those outside. Where every position holds every entry the
   positions are all called 1: they are interchangeable, which saves states. *)
Members(ens) == {b \in Bookies : ens[b] # 0}
Holds(position, e) ==
  /\ position # 0
  /\ WriteQuorum = Size \/ (position - 1 - e) % Size < WriteQuorum
WriteSet(ens, e) == {b \in Bookies : Holds(ens[b], e)}
WriteSets(ens) == {WriteSet(ens, e) : e \in 0..(Size - 1)}
FirstEnsembles ==
  IF WriteQuorum = Size
  THEN {[b \in Bookies |-> IF b \in Spares THEN 0 ELSE 1]}
  ELSE {f \in [Bookies -> 0..Size] : /\ \A p \in 1..Size : Cardinality({b \in Bookies : f[b] = p}) = 1
                                    /\ \A b \in Spares : f[b] = 0}
Replaced(ens, old, new) == [[ens EXCEPT ![old] = 0] EXCEPT ![new] = ens[old]]

Last(seq) == seq[Len(seq)]
SegmentOf(segments, e) ==
  CHOOSE i \in 1..Len(segments) :
    /\ segments[i].first <= e
    /\ i < Len(segments) => e < segments[i + 1].first
(* A segment that would start where the last one does takes its place. *)
WithSegment(segments, first, ens) ==
  LET segment == [first |-> first, ens |-> ens]
  IN  IF Last(segments).first = first
      THEN [segments EXCEPT ![Len(segments)] = segment]
      ELSE Append(segments, segment)

Named(e) == WriteSet(meta.segments[SegmentOf(meta.segments, e)].ens, e)
Durable(b, e) == store[b][e] # 0 /\ <<b, e>> \notin unsynced
LastOf(b) == LET held == {e \in Ids : store[b][e] # 0} IN IF held = {} THEN 0 ELSE CHOOSE e \in held : \A f \in held : f <= e

-----------------------------------------------------------------------------
Idle == [phase |-> "idle", version |-> 0, segments |-> <<>>, reads |-> <<>>, base |-> 0, next |-> 0,
         seen |-> {}, copies |-> <<>>, stored |-> <<>>, replacements |-> 0, end |-> -1]
Resting == [phase |-> "idle", version |-> 0, index |-> 0, old |-> 0, new |-> 0, done |-> {}, was |-> 0]
NoChange == [old |-> 0, new |-> 0, start |-> 0, version |-> 0, to |-> 0]

Init ==
  \E ens \in FirstEnsembles :
    /\ meta = [state |-> "open", segments |-> <<[first |-> 1, ens |-> ens]>>, last |-> 0, version |-> 1]
    /\ limbo = {}
    /\ store = [b \in Bookies |-> [e \in Ids |-> 0]]
    /\ unsynced = {} /\ fenced = {} /\ acks = {}
    /\ writer = [state |-> "open", sent |-> 0, confirmed |-> 0, ens |-> ens, ever |-> ens,
                 from |-> [b \in Bookies |-> 1],
                 lacs |-> [e \in Ids |-> 0], content |-> [e \in Ids |-> 1], change |-> NoChange]
    /\ rec = [r \in Recoverers |-> Idle]
    /\ worker = Resting
    /\ left = [changes |-> ChangesMax, moves |-> MovesMax, crashes |-> CrashesMax, unknowns |-> UnknownsMax]

-----------------------------------------------------------------------------
(* The metadata store. A write that happens makes every other one under way fail: its version has passed. *)
Write(new) == meta' = [new EXCEPT !.version = meta.version + 1] /\ limbo' = {}
Unknown(new) ==
  /\ left.unknowns > 0
  /\ left' = [left EXCEPT !.unknowns = @ - 1]
  /\ limbo' = limbo \cup {new}
  /\ UNCHANGED meta

HappensLate ==
  \E new \in limbo :
    /\ Write(new)
    /\ UNCHANGED <<store, unsynced, fenced, acks, writer, rec, worker, left>>

-----------------------------------------------------------------------------
(* Bookies *)
(* One connection keeps order: a bookie takes the adds of one sender in the order of their ids. *)
Taken(b, e) == <<b, e>> \in acks \/ <<b, e>> \in unsynced

Accept(b, e) ==
  /\ writer.from[b] <= e /\ e <= writer.sent /\ Holds(writer.ever[b], e)
  /\ b \notin fenced
  /\ ~Taken(b, e)
  /\ \A f \in writer.from[b]..(e - 1) : Holds(writer.ever[b], f) => Taken(b, f)
  /\ IF store[b][e] # 0 /\ Content(store[b][e]) = writer.content[e]
     THEN acks' = acks \cup {<<b, e>>} /\ UNCHANGED <<store, unsynced>>
     ELSE /\ store' = [store EXCEPT ![b][e] = Copy(writer.content[e], writer.lacs[e])]
          /\ IF CrashesMax = 0
             THEN acks' = acks \cup {<<b, e>>} /\ UNCHANGED unsynced
             ELSE /\ unsynced' = unsynced \cup {<<b, e>>}
                  /\ acks' = IF Is("ack before sync") THEN acks \cup {<<b, e>>} ELSE acks
  /\ UNCHANGED <<meta, limbo, fenced, writer, rec, worker, left>>

Of(b) == {<<b, e>> : e \in Ids}
Sync(b) ==
  /\ unsynced \cap Of(b) # {}
  /\ unsynced' = unsynced \ Of(b)
  /\ acks' = acks \cup (unsynced \cap Of(b))
  /\ UNCHANGED <<meta, limbo, store, fenced, writer, rec, worker, left>>

Crash(b) ==
  /\ left.crashes > 0
  /\ left' = [left EXCEPT !.crashes = @ - 1]
  /\ store' = [store EXCEPT ![b] = [e \in Ids |-> IF <<b, e>> \in unsynced THEN 0 ELSE @[e]]]
  /\ unsynced' = unsynced \ Of(b)
  /\ fenced' = IF Is("fence not synced") THEN fenced \ {b} ELSE fenced
  /\ unsynced \cap Of(b) # {} \/ fenced' # fenced
  /\ UNCHANGED <<meta, limbo, acks, writer, rec, worker>>

(* The fence waits in the same queue as the adds before it: its answer says that they are durable. *)
Fence(b) ==
  /\ fenced' = fenced \cup {b}
  /\ unsynced' = unsynced \ Of(b)
  /\ acks' = acks \cup (unsynced \cap Of(b))
NoFence == UNCHANGED <<fenced, unsynced, acks>>

-----------------------------------------------------------------------------
(* The writer *)
Writing == writer.state \in {"open", "changing", "asking"}

Send ==
  /\ Writing /\ writer.sent < Entries
  /\ writer' = [writer EXCEPT !.sent = @ + 1, !.lacs[writer.sent + 1] = writer.confirmed]
  /\ UNCHANGED <<meta, limbo, store, unsynced, fenced, acks, rec, worker, left>>

(* The positions whose acknowledgement of e counts. That of a position to be replaced is void from the moment of the
   decision, not only once the change has succeeded: nobody knows when the write happens. *)
Voting(e) ==
  LET acked == {b \in Bookies : <<b, e>> \in acks}
      now == {b \in acked : Holds(writer.ens[b], e)}
      void == IF writer.state = "open" \/ Is("void acks kept") \/ Is("void acks kept during the change") THEN {} ELSE {writer.change.old}
      former == IF Is("void acks kept") THEN {b \in acked : Holds(writer.ever[b], e)} ELSE {}
  IN  (now \ void) \cup former

Needed == IF Is("one ack fewer") THEN AckQuorum - 1 ELSE AckQuorum

Confirm ==
  LET e == writer.confirmed + 1
  IN  /\ Writing /\ e <= writer.sent
      /\ Cardinality(Voting(e)) >= Needed
      /\ writer' = [writer EXCEPT !.confirmed = e]
      /\ UNCHANGED <<meta, limbo, store, unsynced, fenced, acks, rec, worker, left>>

(* A wrong idea: the next entry failed in the eyes of the caller, so take its id for another one. *)
ReuseId ==
  LET e == writer.sent
  IN  /\ Is("id used again") /\ Writing /\ e > writer.confirmed /\ writer.content[e] = 1
      /\ writer' = [writer EXCEPT !.content[e] = 2]
      /\ acks' = acks \ {<<b, e>> : b \in Bookies}
      /\ UNCHANGED <<meta, limbo, store, unsynced, fenced, rec, worker, left>>

(* The change that a bookie takes a place from entry `start` on; one that is tried again keeps its start. A bookie may take
   its own place again. *)
Change(old, new, start) ==
  [old |-> old, new |-> new, start |-> start, version |-> meta.version,
   to |-> [meta EXCEPT !.segments = WithSegment(meta.segments, start, Replaced(Last(meta.segments).ens, old, new))]]
Stopped == [writer EXCEPT !.state = "stopped", !.change = NoChange]

BeginChange(old, new) ==
  /\ writer.state = "open" /\ left.changes > 0
  /\ writer.ens[old] # 0 /\ (writer.ens[new] = 0 \/ new = old)
  /\ meta.state = "open"
  /\ left' = [left EXCEPT !.changes = @ - 1]
  /\ writer' = [writer EXCEPT !.state = "changing", !.change = Change(old, new, writer.confirmed + 1)]
  /\ UNCHANGED <<meta, limbo, store, unsynced, fenced, acks, rec, worker>>

(* The new bookie is sent everything from the start of its segment on, what was confirmed meanwhile included. *)
Adopted ==
  LET ens == Last(writer.change.to.segments).ens
      new == writer.change.new
  IN  [writer EXCEPT !.state = "open", !.ens = ens, !.change = NoChange,
                     !.ever[new] = ens[new], !.from[new] = writer.change.start]
(* What the writer finds stored is its own change: the segment of the same start, with the same bookies. *)
TookEffect ==
  LET found == Last(meta.segments)
      wanted == Last(writer.change.to.segments)
  IN  found = wanted

WriteChange ==
  /\ writer.state = "changing"
  /\ \/ /\ writer.change.version = meta.version \/ Is("change without compare")
        /\ Write(writer.change.to)
        /\ writer' = Adopted
        /\ UNCHANGED left
     \/ /\ writer.change.version # meta.version /\ ~Is("change without compare")
        /\ writer' = [writer EXCEPT !.state = "asking"]
        /\ UNCHANGED <<meta, limbo, left>>
     \/ /\ writer.change.version = meta.version
        /\ Unknown(writer.change.to)
        /\ writer' = IF Is("unknown taken for failed")
                     THEN [writer EXCEPT !.state = "open", !.change = NoChange]
                     ELSE [writer EXCEPT !.state = "asking"]
  /\ UNCHANGED <<store, unsynced, fenced, acks, rec, worker>>

ReadBack ==
  /\ writer.state = "asking"
  /\ writer' = IF meta.state # "open" THEN Stopped
               ELSE IF TookEffect THEN Adopted
               ELSE [writer EXCEPT !.state = "changing", !.change = Change(@.old, @.new, @.start)]
  /\ UNCHANGED <<meta, limbo, store, unsynced, fenced, acks, rec, worker, left>>

(* Whatever was not confirmed is failed first. What becomes of the write concerns the writer no more. *)
Close ==
  LET closed == [meta EXCEPT !.state = "closed", !.last = writer.confirmed]
  IN  /\ Writing /\ meta.state = "open"
      /\ \/ Write(closed) /\ UNCHANGED left
         \/ Unknown(closed)
      /\ writer' = Stopped
      /\ UNCHANGED <<store, unsynced, fenced, acks, rec, worker>>

-----------------------------------------------------------------------------
(* Recoverers *)
Begun(m) ==
  LET segment == Last(m.segments)
  IN  [Idle EXCEPT !.phase = "fencing", !.version = m.version, !.segments = m.segments, !.reads = segment.ens,
                   !.base = segment.first - 1]

Open(r) ==
  /\ rec[r].phase = "idle"
  /\ \/ /\ meta.state = "closed"
        /\ rec' = [rec EXCEPT ![r] = [Idle EXCEPT !.phase = "done", !.end = meta.last]]
        /\ UNCHANGED <<meta, limbo, left>>
     \/ /\ meta.state = "in recovery"
        /\ rec' = [rec EXCEPT ![r] = Begun(meta)]
        /\ UNCHANGED <<meta, limbo, left>>
     \/ LET claimed == [meta EXCEPT !.state = "in recovery"]
        IN  /\ meta.state = "open"
            /\ \/ /\ Write(claimed)
                  /\ rec' = [rec EXCEPT ![r] = Begun(meta')]
                  /\ UNCHANGED left
               \/ Unknown(claimed) /\ UNCHANGED rec
  /\ UNCHANGED <<store, unsynced, fenced, acks, writer, worker>>

SilentMax == IF Is("coverage by the rule for missing") THEN WriteQuorum - AckQuorum ELSE AckQuorum - 1
Covered(ens, answered) == \A set \in WriteSets(ens) : Cardinality(set \ answered) <= SilentMax

FenceAndReadLac(r, b) ==
  LET me == rec[r]
      answered == me.seen \cup {b}
      last == LastOf(b)
      base == Max(me.base, IF last = 0 THEN 0 ELSE Lac(store[b][last]))
  IN  /\ me.phase = "fencing" /\ me.reads[b] # 0 /\ b \notin me.seen
      /\ IF Is("recovery without fencing") THEN NoFence ELSE Fence(b)
      /\ rec' = [rec EXCEPT ![r] =
           IF Covered(me.reads, answered)
           THEN [me EXCEPT !.phase = "copying", !.seen = {}, !.base = base, !.next = base + 1,
                           !.copies = [e \in Ids |-> 0], !.stored = [e \in Ids |-> {}]]
           ELSE [me EXCEPT !.seen = answered, !.base = base]]
      /\ UNCHANGED <<meta, limbo, store, writer, worker, left>>

Ens(me) == Last(me.segments).ens
(* Up to where the re-adds have their quorum, in order. *)
Restored(me) ==
  LET good(c) == \A e \in (me.base + 1)..c : Cardinality(me.stored[e]) >= AckQuorum
  IN  CHOOSE c \in me.base..(me.next - 1) : good(c) /\ (c = me.next - 1 \/ ~good(c + 1))

MissingNeeded ==
  CASE Is("missing by one fewer") -> WriteQuorum - AckQuorum
    [] Is("missing by the ack quorum") -> AckQuorum
    [] OTHER -> WriteQuorum - AckQuorum + 1

LacOfReAdd(me) == IF Is("re-adds vouch for re-adds") THEN Restored(me) ELSE me.base

(* `seen`: who answered that it does not have the next entry. *)
ReadNext(r, b) ==
  LET me == rec[r]
      e == me.next
      missing == me.seen \cup {b}
      fencing == ~Is("recovery without fencing") /\ ~Is("recovery reads without fencing")
  IN  /\ me.phase = "copying" /\ e <= Entries
      /\ Holds(me.reads[b], e) /\ b \notin me.seen
      /\ IF fencing THEN Fence(b) ELSE NoFence
      /\ rec' = [rec EXCEPT ![r] =
           IF store[b][e] # 0
           THEN [me EXCEPT !.next = e + 1, !.seen = {}, !.copies[e] = Copy(Content(store[b][e]), LacOfReAdd(me))]
           ELSE IF Cardinality(missing) < MissingNeeded THEN [me EXCEPT !.seen = missing]
           ELSE IF Is("reads past a gap") /\ e < Entries
                THEN [me EXCEPT !.next = e + 1, !.seen = {}, !.stored[e] = Bookies]
           ELSE [me EXCEPT !.phase = "ending", !.seen = {}]]
      /\ UNCHANGED <<meta, limbo, store, writer, worker, left>>

(* Nobody ever wrote beyond `Entries`. *)
ReadBeyond(r) ==
  /\ rec[r].phase = "copying" /\ rec[r].next > Entries
  /\ rec' = [rec EXCEPT ![r].phase = "ending"]
  /\ UNCHANGED <<meta, limbo, store, unsynced, fenced, acks, writer, worker, left>>

ReAdd(r, b, e) ==
  LET me == rec[r]
  IN  /\ me.phase \in {"copying", "ending"}
      /\ me.base < e /\ e < me.next
      /\ Holds(Ens(me)[b], e) /\ b \notin me.stored[e]
      /\ \A f \in (Restored(me) + 1)..(e - 1) : Holds(Ens(me)[b], f) => b \in me.stored[f]
      /\ store' = [store EXCEPT ![b][e] = me.copies[e]]
      /\ unsynced' = unsynced \ {<<b, e>>}
      /\ rec' = [rec EXCEPT ![r].stored[e] = @ \cup {b}]
      /\ UNCHANGED <<meta, limbo, fenced, acks, writer, worker, left>>

Replace(r, old, new) ==
  LET me == rec[r]
      restored == Restored(me)
  IN  /\ me.phase \in {"copying", "ending"} /\ me.replacements < ReplacementsMax
      /\ restored < me.next - 1
      /\ Ens(me)[old] # 0 /\ Ens(me)[new] = 0
      /\ rec' = [rec EXCEPT ![r] =
           [me EXCEPT !.replacements = @ + 1,
                      !.segments = WithSegment(@, restored + 1, Replaced(Ens(me), old, new)),
                      !.stored = [e \in Ids |-> IF e > restored THEN @[e] \ {old} ELSE @[e]]]]
      /\ UNCHANGED <<meta, limbo, store, unsynced, fenced, acks, writer, worker, left>>

CloseRecovered(r) ==
  LET me == rec[r]
      closed == [meta EXCEPT !.state = "closed", !.segments = me.segments, !.last = me.next - 1]
      again == [rec EXCEPT ![r] = Idle]
      done == [rec EXCEPT ![r] = [Idle EXCEPT !.phase = "done", !.end = me.next - 1]]
      fits == me.version = meta.version \/ Is("close without compare")
  IN  /\ me.phase = "ending" /\ Restored(me) = me.next - 1
      /\ \/ fits /\ Write(closed) /\ rec' = done /\ UNCHANGED left
         \/ ~fits /\ rec' = again /\ UNCHANGED <<meta, limbo, left>>
         \/ fits /\ Unknown(closed) /\ rec' = again
      /\ UNCHANGED <<store, unsynced, fenced, acks, writer, worker>>

-----------------------------------------------------------------------------
(* The worker. It touches segments that are complete: not the last one, or those of a closed ledger. *)
Complete(i) == i < Len(meta.segments) \/ meta.state = "closed"
EndOf(m, i) == IF i < Len(m.segments) THEN m.segments[i + 1].first - 1 ELSE m.last
InSegment(m, i, b) == {e \in m.segments[i].first..EndOf(m, i) : Holds(m.segments[i].ens[b], e)}

BeginMove(i, old, new) ==
  /\ worker.phase = "idle" /\ left.moves > 0
  /\ i \in 1..Len(meta.segments) /\ Complete(i)
  /\ meta.segments[i].ens[old] # 0 /\ meta.segments[i].ens[new] = 0
  /\ left' = [left EXCEPT !.moves = @ - 1]
  /\ worker' = [phase |-> "copying", version |-> meta.version, index |-> i, old |-> old, new |-> new,
                done |-> {}, was |-> meta]
  /\ UNCHANGED <<meta, limbo, store, unsynced, fenced, acks, writer, rec>>

Sources(m, i, e) == {b \in WriteSet(m.segments[i].ens, e) : Durable(b, e)}
(* The first id whose copy is lacking: what a worker writes carries the entry before as LAC. *)
CopyToNew(e) ==
  LET i == worker.index
  IN  /\ worker.phase = "copying"
      /\ e \in InSegment(worker.was, i, worker.old) \ worker.done
      /\ worker' = [worker EXCEPT !.done = @ \cup {e}]
      /\ \/ \E b \in Sources(worker.was, i, e) :
              store' = [store EXCEPT ![worker.new][e] = Copy(Content(store[b][e]), e - 1)]
         \/ Is("worker trusts a timeout") /\ UNCHANGED store
      /\ unsynced' = unsynced \ {<<worker.new, e>>}
      /\ UNCHANGED <<meta, limbo, fenced, acks, writer, rec, left>>

EndMove ==
  LET i == worker.index
      m == IF Is("worker without compare") THEN worker.was ELSE meta
      moved == [m EXCEPT !.segments[i].ens = Replaced(@, worker.old, worker.new)]
      fits == worker.version = meta.version \/ Is("worker without compare")
  IN  /\ worker.phase = "copying" /\ worker.done = InSegment(worker.was, i, worker.old)
      /\ \/ fits /\ Write(moved) /\ UNCHANGED left
         \/ ~fits /\ UNCHANGED <<meta, limbo, left>>
         \/ fits /\ Unknown(moved)
      /\ worker' = Resting
      /\ UNCHANGED <<store, unsynced, fenced, acks, writer, rec>>

(* A bookie that is back gets what it lacks; the metadata stays as it is. *)
Repair(i, b, e) ==
  /\ left.moves > 0
  /\ i \in 1..Len(meta.segments) /\ Complete(i)
  /\ e \in InSegment(meta, i, b) /\ store[b][e] = 0
  /\ \E from \in Sources(meta, i, e) :
       store' = [store EXCEPT ![b][e] = Copy(Content(store[from][e]), e - 1)]
  /\ left' = [left EXCEPT !.moves = @ - 1]
  /\ UNCHANGED <<meta, limbo, unsynced, fenced, acks, writer, rec, worker>>

-----------------------------------------------------------------------------
Next ==
  \/ HappensLate
  \/ \E b \in Bookies, e \in Ids : Accept(b, e)
  \/ \E b \in Bookies : Sync(b) \/ Crash(b)
  \/ Send \/ Confirm \/ ReuseId \/ WriteChange \/ ReadBack \/ Close
  \/ \E old, new \in Bookies : BeginChange(old, new)
  \/ \E r \in Recoverers :
       \/ Open(r) \/ ReadBeyond(r) \/ CloseRecovered(r)
       \/ \E b \in Bookies : FenceAndReadLac(r, b) \/ ReadNext(r, b) \/ \E e \in Ids : ReAdd(r, b, e)
       \/ \E old, new \in Bookies : Replace(r, old, new)
  \/ \E i \in 1..3, old, new \in Bookies : BeginMove(i, old, new)
  \/ \E e \in Ids : CopyToNew(e)
  \/ EndMove
  \/ \E i \in 1..3, b \in Bookies, e \in Ids : Repair(i, b, e)

Spec == Init /\ [][Next]_vars

Symmetry == Permutations(Bookies \ Spares) \cup Permutations(Spares) \cup Permutations(Recoverers)

-----------------------------------------------------------------------------
(* What must hold in every state *)
Copies(e) == {b \in Named(e) : Durable(b, e)}
Closed == meta.state = "closed"

(* An acknowledged entry is durable on AckQuorum of the bookies that the metadata names for it. *)
AckedIsKept == \A e \in 1..writer.confirmed : Cardinality(Copies(e)) >= AckQuorum

(* A closed ledger ends at or after every acknowledged entry; so a writer that is too late acknowledges nothing beyond. *)
EndCoversAcked == Closed => meta.last >= writer.confirmed

(* Each entry of a closed ledger can be read, and survives AckQuorum-1 lost disks. *)
ClosedIsKept == Closed => \A e \in 1..meta.last : Cardinality(Copies(e)) >= AckQuorum

(* Whatever a reader may take for confirmed has one content. *)
OneContent ==
  LET confirmed == IF Closed THEN meta.last ELSE writer.confirmed
  IN  \A e \in 1..confirmed : \A b, c \in Named(e) :
        store[b][e] # 0 /\ store[c][e] # 0 => Content(store[b][e]) = Content(store[c][e])

(* A reader that met a LAC in a header can read up to there, before and after the close. *)
LacNeverBack ==
  \A b \in Bookies, e \in Ids : store[b][e] # 0 =>
    /\ Closed => meta.last >= Lac(store[b][e])
    /\ \A f \in 1..Lac(store[b][e]) : Copies(f) # {}

OneEnd == \A r \in Recoverers : rec[r].phase = "done" => Closed /\ rec[r].end = meta.last

WellFormed ==
  /\ meta.segments[1].first = 1
  /\ \A i \in 1..Len(meta.segments) : Cardinality(Members(meta.segments[i].ens)) = Size
  /\ \A i \in 1..(Len(meta.segments) - 1) : meta.segments[i].first < meta.segments[i + 1].first
=============================================================================
