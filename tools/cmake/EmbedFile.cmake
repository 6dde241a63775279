# cmake -DFROM=<file> -DTO=<file.cc> -DNAMES=<namespace> -DNAME=<variable> -P EmbedFile.cmake: a source file with the
# bytes of a file as `alignas(64) const unsigned char <variable>[]` and their number as `<variable>Bytes`, in a namespace.
file(READ ${FROM} bytes HEX)
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${TO} "// Made from a file by EmbedFile.cmake.
#include <cstddef>
namespace ${NAMES} {
alignas(64) extern const unsigned char ${NAME}[] = {${bytes}0};
extern const std::size_t ${NAME}Bytes = sizeof ${NAME} - 1;
}  // namespace ${NAMES}
")
