// A port for a program that binds it itself, later.
#pragma once

namespace cohort::launcher {

// Returns a free TCP port from `first` to `last`. Without them it is below the range that the kernel gives to outgoing
// connections, so that none takes it before rank 0 does. Returns 0 when none is found.
int FindFreePort(int first = 0, int last = 0);

}  // namespace cohort::launcher
