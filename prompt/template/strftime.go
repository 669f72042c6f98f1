package template

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// strftime formats the rendering's time as C's strftime in the C locale does.
func (r *run) strftime(format string) string {
	t := r.now
	r.alloc(len(format) * 8)
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		flag := byte(0)
		if strings.IndexByte("-_0^#", format[i]) >= 0 && i+1 < len(format) {
			flag = format[i]
			i++
		}
		s, ok := strftimeField(t, format[i])
		if !ok || flag != 0 && flag != '-' {
			r.unsupported("strftime_now with '%" + format[i:i+1] + "'")
		}
		if flag == '-' && len(s) > 1 {
			trimmed := strings.TrimLeft(s[:len(s)-1], "0 ") + s[len(s)-1:]
			s = trimmed
		}
		b.WriteString(s)
	}
	return b.String()
}

func strftimeField(t time.Time, c byte) (string, bool) {
	two := func(n int) (string, bool) { return fmt.Sprintf("%02d", n), true }
	switch c {
	case 'Y':
		return strconv.Itoa(t.Year()), true
	case 'm':
		return two(int(t.Month()))
	case 'd':
		return two(t.Day())
	case 'H':
		return two(t.Hour())
	case 'I':
		return two((t.Hour()+11)%12 + 1)
	case 'M':
		return two(t.Minute())
	case 'S':
		return two(t.Second())
	case 'y':
		return two(t.Year() % 100)
	case 'e':
		return fmt.Sprintf("%2d", t.Day()), true
	case 'j':
		return fmt.Sprintf("%03d", t.YearDay()), true
	case 'f':
		return fmt.Sprintf("%06d", t.Nanosecond()/1000), true
	case 'w':
		return strconv.Itoa(int(t.Weekday())), true
	case 'u':
		return strconv.Itoa((int(t.Weekday())+6)%7 + 1), true
	case 'z', 'Z':
		return "", true // datetime.now() is naive
	}
	layout := map[byte]string{
		'B': "January", 'b': "Jan", 'h': "Jan", 'A': "Monday", 'a': "Mon", 'p': "PM",
		'F': "2006-01-02", 'T': "15:04:05", 'R': "15:04", 'D': "01/02/06", 'x': "01/02/06", 'X': "15:04:05",
		'c': "Mon Jan _2 15:04:05 2006", 'r': "03:04:05 PM",
	}[c]
	if layout != "" {
		return t.Format(layout), true
	}
	text, ok := map[byte]string{'%': "%", 'n': "\n", 't': "\t"}[c]
	return text, ok
}
