// Package spell finds the name that was meant by one that is not known, for the
// settings and files that people write.
//
// # Concurrency
//
// Functions without state.
package spell

import "slices"

// Nearest returns the known name with the fewest changes to name; "" when none is
// known.
func Nearest(name string, known []string) string {
	if len(known) == 0 {
		return ""
	}
	return slices.MinFunc(known, func(a, b string) int { return Distance(name, a) - Distance(name, b) })
}

// Distance is the number of bytes to insert, delete or replace to turn a into b.
func Distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
