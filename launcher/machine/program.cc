#include "cohort/launcher/machine/program.h"

#include <limits.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "absl/status/status.h"
#include "cohort/launcher/machine/program_file.h"
#include "cohort/launcher/remedies/remedies.h"

namespace cohort::launcher {
namespace {

enum class Kind { kAbsent, kUnusable, kExecutable };

// `name` is as the user typed it. `why` is the error of one that is unusable.
Kind Look(const std::string& path, const std::string& name, absl::Status* why) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) return Kind::kAbsent;
  if (S_ISDIR(info.st_mode)) {
    *why = WithRemedy(Remedy::kProgramIsAFolder, absl::PermissionDeniedError(path + " is a folder, not a program"));
    return Kind::kUnusable;
  }
  if (!S_ISREG(info.st_mode)) {
    const char* const kind = S_ISFIFO(info.st_mode)   ? " is a pipe"
                             : S_ISSOCK(info.st_mode) ? " is a socket"
                                                      : " is a device";
    *why = absl::PermissionDeniedError(path + kind + ", not a program");
    return Kind::kUnusable;
  }
  if (::access(path.c_str(), X_OK) != 0) {
    struct statvfs where{};
    if ((info.st_mode & 0111) != 0 && ::statvfs(path.c_str(), &where) == 0 && (where.f_flag & ST_NOEXEC) != 0) {
      *why = absl::PermissionDeniedError(
          path + " lies on a file system where nothing may be executed (mounted noexec); copy it to another");
      return Kind::kUnusable;
    }
    *why = absl::PermissionDeniedError(path + " is not executable; " + InsteadOfExecuting(path, name));
    return Kind::kUnusable;
  }
  if (HasWindowsFirstLine(path)) {
    *why = absl::PermissionDeniedError("can't execute " + path + ": " + TroubleWithProgram(path));
    return Kind::kUnusable;
  }
  return Kind::kExecutable;
}

// Advice for a file that is not there: the name that the user may have meant.
std::string NearlyNamed(const std::string& path, const std::string& name) {
  if (name.find('\\') != std::string::npos) return "; a path has slashes here: dir/train.py";
  if (name.find(' ') != std::string::npos) return "; is it a whole command line? Leave its quotes out, or use sh -c";
  const size_t equals = name.find('=');
  if (equals != std::string::npos && name.find('/') > equals) {
    return "; a variable is set by --env " + name.substr(0, equals) + "=VALUE";
  }
  if (name.starts_with("~")) return "; no shell has replaced its ~";
  for (const char* const suffix : {".py", ".sh"}) {
    if (::access((path + suffix).c_str(), R_OK) == 0) return "; did you mean " + name + suffix + "?";
  }
  return "";
}

}  // namespace

std::string OwnPath() {
  char path[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  return n <= 0 ? "" : std::string(path, static_cast<size_t>(n));
}

absl::StatusOr<Program> FindProgram(const std::string& name, const std::string& path,
                                    const std::string& working_directory, const std::string& own_folder) {
  absl::Status why;
  if (name == "." || name == "..") {  // every folder of PATH has them
    return WithRemedy(Remedy::kProgramIsAFolder,
                      absl::PermissionDeniedError("'" + name + "' is a folder, not a program; name a program in it"));
  }
  if (name.find('/') != std::string::npos) {
    std::string_view rest = name;
    while (rest.starts_with("./")) rest.remove_prefix(2);  // which would be shown
    const std::string absolute = name[0] == '/' ? name : working_directory + "/" + std::string(rest);
    switch (Look(absolute, name, &why)) {
      case Kind::kExecutable:
        return Program{absolute, ""};
      case Kind::kUnusable:
        return why;
      case Kind::kAbsent:
        return WithRemedy(Remedy::kProgramNotFound,
                          absl::NotFoundError("there is no program " + absolute + NearlyNamed(absolute, name)));
    }
  }
  absl::Status first_unusable;
  const auto usable = [&](const std::string& folder, Program* program) {
    program->path = (folder.empty() ? working_directory : folder) + "/" + name;
    if (program->path[0] != '/') program->path = working_directory + "/" + program->path;
    const Kind kind = Look(program->path, name, &why);
    if (kind == Kind::kUnusable && first_unusable.ok()) first_unusable = why;
    return kind == Kind::kExecutable;
  };
  Program program;
  for (size_t begin = 0; !path.empty() && begin <= path.size();) {
    const size_t colon = std::min(path.find(':', begin), path.size());
    program.where = "in PATH";
    if (usable(path.substr(begin, colon - begin), &program)) return program;
    begin = colon + 1;
  }
  program.where = "in the working directory";
  if (usable(working_directory, &program)) return program;
  program.where = "beside dlaunch";
  if (usable(own_folder, &program)) return program;
  if (!first_unusable.ok()) return first_unusable;
  const std::string own = own_folder.empty() ? "" : " or beside dlaunch (" + own_folder + ")";
  return WithRemedy(Remedy::kProgramNotFound,
                    absl::NotFoundError("there is no program '" + name + "' in PATH" + (own.empty() ? " or" : ",") +
                                        " in the working directory (" + working_directory + ")" + own +
                                        "; give its path" + NearlyNamed(working_directory + "/" + name, name)));
}

}  // namespace cohort::launcher
