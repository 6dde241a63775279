// Checksums of a piece of a tensor, tile by tile, so that a reader of a part reads and checks little more than it
// keeps.
//
//   a piece seen as a matrix: its first dimension by all others together        tiles of 2 x 3 elements
//
//     . . . | . . . | .          A reader of some rows, or of some columns (the part of a tensor-parallel rank), reads
//     . . . | . . . | .          the tiles that have them. The file has the piece row by row all the same: a tile's
//     ------+-------+--          bytes lie in as many runs as it has rows.
//     . . . | . . . | .
//
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
// Returns the tiles of a piece of these sizes, a part of a tensor of sizes `whole`: the 64th part of the whole's rows
// by that of its columns, but at least 64 bytes. A rank that keeps a third of the rows or of the columns thus reads at
// most 1.1 times that. The checksums of all of a tensor's pieces have 64 KiB, or a quarter of its bytes if that is
// less.
TileGrid TilesOf(const std::vector<int64_t>& sizes, const std::vector<int64_t>& whole, int64_t element_size);

// The characters of a tile's checksum, the first ones of its SHA-256.
inline constexpr int64_t kTileChecksumSize = 16;

// A range of tiles, and the elements that they have.
struct TileRange {
  int64_t first_row = 0, last_row = 0;        // tiles [first_row, last_row)
  int64_t first_column = 0, last_column = 0;  // by [first_column, last_column)
};
// The tiles that have elements [row_begin, row_end) by [column_begin, column_end), which are not empty.
TileRange TilesWith(const TileGrid& grid, int64_t row_begin, int64_t row_end, int64_t column_begin, int64_t column_end);

// The checksums of a range's tiles, tile row by tile row, one after another. `bytes` has the elements of the range
// alone, row by row.
std::string TileChecksums(const TileGrid& grid, const TileRange& range, const char* bytes, int64_t element_size);
// All tiles.
TileRange AllTiles(const TileGrid& grid);

}  // namespace cohort::trainer
