package ib

const hexDigits = "0123456789abcdef"

func gidString(g GID) string {
	b := make([]byte, 0, 39)
	for i, v := range g {
		if i > 0 && i%2 == 0 {
			b = append(b, ':')
		}
		b = append(b, hexDigits[v>>4], hexDigits[v&15])
	}
	return string(b)
}
