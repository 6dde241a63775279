// Checksums of a piece of a tensor, tile by tile, so that a reader of a part reads and checks little more than it
// keeps.
//
//   a piece seen as a matrix, its first dimension by all others together, cut in three ways:
//
//     tiles              strips of rows        strips of columns
//
//     . . . | . . .      . . . . . .           . | . | . | .
//     . . . | . . .      -----------           . | . | . | .        Each cut has checksums of its own. A reader of a
//     ------+------      . . . . . .           . | . | . | .        part takes the cut in which the part lies in the
//     . . . | . . .      -----------           . | . | . | .        fewest bytes: strips where it has some rows or some
//     . . . | . . .      . . . . . .           . | . | . | .        columns, tiles where it has some of both.
//
// The file has the piece row by row all the same: the bytes of a tile lie in as many runs as it has rows.
//
// A part of n parts along one dimension begins and ends within a strip of 1 / 1024 of it, and is read with at most
// 2 n / 1024 of itself more; where each of n ranks has written some rows and reads some columns, with 2 n^2 / 8192. A
// part of m by n parts begins and ends within tiles of 1 / 64 by 1 / 64: at most 2 (m + n) / 64, on average half.
// Dimensions that the numbers of strips or tiles don't exceed are cut to single elements, and nothing more is read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::trainer {

struct TileGrid {
  int64_t rows = 0, columns = 0;            // elements of the piece
  int64_t tile_rows = 1, tile_columns = 1;  // of all tiles but the last ones

  int64_t row_tiles() const { return (rows + tile_rows - 1) / tile_rows; }
  int64_t column_tiles() const { return (columns + tile_columns - 1) / tile_columns; }
};

// Returns the rows and columns of a piece of these sizes, as one tile.
TileGrid MatrixOf(const std::vector<int64_t>& sizes);
// Returns the cuts of a piece of these sizes, a part of a tensor of sizes `whole`: tiles, then strips of rows and of
// columns where these are thinner. No tile has less than 64 bytes unless the piece has. The checksums of one piece that
// is the whole have 96 KiB, those of many pieces at most 320 KiB, and each cut's about a quarter of the bytes or less.
std::vector<TileGrid> CutsOf(const std::vector<int64_t>& sizes, const std::vector<int64_t>& whole,
                             int64_t element_size);

// The characters of a tile's checksum, the first ones of its SHA-256.
inline constexpr int64_t kTileChecksumSize = 16;

// A range of tiles, and the elements that they have.
struct TileRange {
  int64_t first_row = 0, last_row = 0;        // tiles [first_row, last_row)
  int64_t first_column = 0, last_column = 0;  // by [first_column, last_column)
};
// The elements of these tiles.
int64_t ElementsOf(const TileGrid& grid, const TileRange& range);
// The tiles that have elements [row_begin, row_end) by [column_begin, column_end), which are not empty.
TileRange TilesWith(const TileGrid& grid, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end);

// A cut and the checksums of all of its tiles.
struct CheckedCut {
  TileGrid grid;
  std::string checksums;
};

// The checksums of a range's tiles, tile row by tile row, one after another. `bytes` has the elements of the range
// alone, row by row.
std::string TileChecksums(const TileGrid& grid, const TileRange& range, const char* bytes, int64_t element_size);
// All tiles.
TileRange AllTiles(const TileGrid& grid);

}  // namespace cohort::trainer
