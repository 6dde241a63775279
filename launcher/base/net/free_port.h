// A port for a program that binds it itself, later.
#pragma once

namespace cohort::launcher {

// A free TCP port from `first` to `last`; without them one below the range that the kernel gives to outgoing
// connections, so that none takes it before rank 0 does. 0 when none is found.
int FindFreePort(int first = 0, int last = 0);

}  // namespace cohort::launcher
