// FailWith: a group that fails when a rank outside of it dies.
//
// Ranks in several groups, such as a group for each axis of a mesh, wait for each other in a chain:
//
//   rank 0 ──waits in group {0, 1}──► rank 1 ──waits in group {1, 3}──► rank 3, dead
//
// Group {1, 3} fails at once. Group {0, 1} fails when rank 1 has ended, and its error names rank 1. With
// FailWith(group, world) it fails at once too, and its error names rank 3.
#pragma once

namespace cohort::comm {

class Communicator;

// From now on `group`, and groups made from it later, fail when any rank of `whole` is lost, as they do when a member
// is lost: kUnavailable, which names that rank. The result of Shrink does not. Local; each member calls it, or stays
// with what it knows of members.
void FailWith(Communicator& group, const Communicator& whole);

}  // namespace cohort::comm
