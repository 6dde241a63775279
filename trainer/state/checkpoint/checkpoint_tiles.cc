#include "cohort/trainer/state/checkpoint/checkpoint_tiles.h"

#include <openssl/evp.h>

#include <algorithm>
#include <memory>

#include "c10/util/Exception.h"

namespace cohort::trainer {
namespace {

constexpr int64_t kTiles = 64;          // along the whole's rows, and along its columns
constexpr int64_t kStrips = 1024;       // of the whole's rows, and of its columns
constexpr int64_t kMostStrips = 8'192;  // of all of a tensor's pieces, of either kind
constexpr int64_t kLeastBytes = 64;

int64_t RoundedUp(int64_t number, int64_t divisor) { return (number + divisor - 1) / divisor; }

// One digest after another.
class Digest {
 public:
  void Begin() { Check(EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr)); }
  void Add(const char* bytes, int64_t count) {
    Check(EVP_DigestUpdate(context_.get(), bytes, static_cast<size_t>(count)));
  }
  void End(std::string& text) {
    unsigned char digest[EVP_MAX_MD_SIZE];
    unsigned int length = 0;
    Check(EVP_DigestFinal_ex(context_.get(), digest, &length));
    for (int64_t i = 0; i < kTileChecksumSize / 2; ++i) {
      text += "0123456789abcdef"[digest[i] >> 4];
      text += "0123456789abcdef"[digest[i] & 15];
    }
  }

 private:
  static void Check(int ok) { TORCH_CHECK(ok == 1, "OpenSSL computes no SHA-256"); }
  const std::unique_ptr<EVP_MD_CTX, void (*)(EVP_MD_CTX*)> context_{EVP_MD_CTX_new(), &EVP_MD_CTX_free};
};

}  // namespace

TileGrid MatrixOf(const std::vector<int64_t>& sizes) {
  TileGrid grid = {.rows = sizes.empty() ? 1 : sizes.front(), .columns = 1};
  for (size_t dim = 1; dim < sizes.size(); ++dim) grid.columns *= sizes[dim];
  grid.tile_rows = std::max<int64_t>(grid.rows, 1);
  grid.tile_columns = std::max<int64_t>(grid.columns, 1);
  return grid;
}

std::vector<TileGrid> CutsOf(const std::vector<int64_t>& sizes, const std::vector<int64_t>& whole,
                             int64_t element_size) {
  const TileGrid piece = MatrixOf(sizes), all = MatrixOf(whole);
  const int64_t rows = piece.tile_rows, columns = piece.tile_columns;  // at least 1
  const int64_t least = std::max<int64_t>(kLeastBytes / element_size, 1);
  TileGrid tiles = piece;
  tiles.tile_rows = std::clamp<int64_t>(RoundedUp(all.rows, kTiles), 1, rows);
  tiles.tile_columns = std::clamp<int64_t>(RoundedUp(all.columns, kTiles), 1, columns);
  if (tiles.tile_rows * tiles.tile_columns < least) {
    tiles.tile_columns = std::min(RoundedUp(least, tiles.tile_rows), columns);
  }
  if (tiles.tile_rows * tiles.tile_columns < least) {
    tiles.tile_rows = std::min(RoundedUp(least, tiles.tile_columns), rows);
  }
  // A strip of `across` elements in each of its rows or columns: its thickness.
  const int64_t least_strip = std::max(least, RoundedUp(all.rows * all.columns, kMostStrips));
  const auto thickness = [&](int64_t whole_length, int64_t across) {
    return std::max({RoundedUp(whole_length, kStrips), RoundedUp(least_strip, across), int64_t{1}});
  };
  std::vector<TileGrid> cuts = {tiles};
  TileGrid strips = piece;
  strips.tile_rows = thickness(all.rows, columns);
  if (strips.tile_rows < tiles.tile_rows) cuts.push_back(strips);
  strips = piece;
  strips.tile_columns = thickness(all.columns, rows);
  if (strips.tile_columns < tiles.tile_columns) cuts.push_back(strips);
  return cuts;
}

int64_t ElementsOf(const TileGrid& grid, const TileRange& range) {
  const int64_t rows = std::min(range.last_row * grid.tile_rows, grid.rows) - range.first_row * grid.tile_rows;
  const int64_t right = std::min(range.last_column * grid.tile_columns, grid.columns);
  return rows * (right - range.first_column * grid.tile_columns);
}

TileRange TilesWith(const TileGrid& grid, int64_t row_begin, int64_t row_end, int64_t column_begin,
                    int64_t column_end) {
  return {.first_row = row_begin / grid.tile_rows,
          .last_row = (row_end - 1) / grid.tile_rows + 1,
          .first_column = column_begin / grid.tile_columns,
          .last_column = (column_end - 1) / grid.tile_columns + 1};
}

TileRange AllTiles(const TileGrid& grid) {
  return {.first_row = 0, .last_row = grid.row_tiles(), .first_column = 0, .last_column = grid.column_tiles()};
}

std::string TileChecksums(const TileGrid& grid, const TileRange& range, const char* bytes, int64_t element_size) {
  const int64_t left = range.first_column * grid.tile_columns, top = range.first_row * grid.tile_rows;
  const int64_t right = std::min(range.last_column * grid.tile_columns, grid.columns);
  const int64_t row_bytes = (right - left) * element_size;
  Digest digest;
  std::string text;
  for (int64_t tile_row = range.first_row; tile_row < range.last_row; ++tile_row) {
    const int64_t begin = tile_row * grid.tile_rows, end = std::min(begin + grid.tile_rows, grid.rows);
    for (int64_t tile_column = range.first_column; tile_column < range.last_column; ++tile_column) {
      const int64_t from = tile_column * grid.tile_columns, to = std::min(from + grid.tile_columns, grid.columns);
      digest.Begin();
      if (to - from == right - left) {
        digest.Add(bytes + (begin - top) * row_bytes, (end - begin) * row_bytes);
      } else {
        for (int64_t row = begin; row < end; ++row) {
          digest.Add(bytes + (row - top) * row_bytes + (from - left) * element_size, (to - from) * element_size);
        }
      }
      digest.End(text);
    }
  }
  return text;
}

}  // namespace cohort::trainer
