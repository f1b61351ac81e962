package decision

import (
	"math/rand/v2"
	"testing"
)

func TestCounts(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var c Counts
	var want [50]int64
	for range 20_000 {
		place, n := rnd.Int64N(int64(len(want))), rnd.Int64N(1<<24)*rnd.Int64N(2)
		switch rnd.IntN(20) {
		default:
			c.Put(place, n)
			want[place] = n
		case 0:
			c.Drop(place)
			left := want[place:]
			copy(want[:], left)
			clear(want[len(left):])
		case 1:
			c.Clear()
			clear(want[:])
		case 2:
			var read Counts
			if !read.SetBytes(c.Bytes()) {
				t.Fatalf("SetBytes does not take %v", c.Bytes())
			}
			c = read
		}
		for i := range want {
			if got := c.At(int64(i)); got != want[i] {
				t.Fatalf("At(%d) = %d, want %d", i, got, want[i])
			}
		}
		end, most, sum := rnd.Int64N(2*int64(len(want))), rnd.Int64N(1<<24), int64(0)
		for i := place; i < min(end, int64(len(want))); i++ {
			sum += min(want[i], most)
		}
		if got := c.Sum(place, end, most); got != sum {
			t.Fatalf("Sum(%d, %d, %d) = %d, want %d", place, end, most, got, sum)
		}
		if b := c.Bytes(); len(b) > 0 && b[len(b)-1]|b[len(b)-2]|b[len(b)-3] == 0 {
			t.Fatalf("zeros at the end of %v", b)
		}
	}
}

func TestCountsRefuseOtherBytes(t *testing.T) {
	for _, b := range [][]byte{{1}, {1, 2}, {1, 2, 3, 4}, {0, 0, 0}, {1, 2, 3, 0, 0, 0}} {
		c := Counts{bytes: []byte{7, 0, 0}}
		if c.SetBytes(b) || c.At(0) != 7 {
			t.Errorf("SetBytes(%v) = true, or changed the Counts", b)
		}
	}
}
